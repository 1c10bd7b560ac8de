"""What README.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

README = PageClaims(
    claims=(
        "took fewer steps to the target than Adam in all "
        "{word(tuned_against_adam('badm-kronecker')[0])} comparisons, the default in "
        "{word(tuned_against_adam('badm')[0])} and as many in "
        "{word(tuned_against_adam('badm')[1])};",
        "compares {len(results('digits')['rows'])} optimizers on scikit-learn's digits",
        "badm.Consensus(model.parameters(), optimizer, every={default(badm.Consensus, 'every')})",
        "Fashion-MNIST, {fashion_setting('train_images')} real images, a small CNN, batches of "
        "{fashion_setting('batch_size')}, {fashion_setting('steps')} steps (script, runs). "
        "Learning rate and stopping point are chosen on {fashion_setting('validation_images')} "
        "other training images",
        "Then come {word(len(fashion_setting('final_seeds')))} fresh seeds, of which",
        "The {fashion_setting('test_images')} test images are read once a run",
        "steps to {100 * fashion_setting('target')} % validation accuracy | stopped after",
        "a memory of {default(badm.BADM, 'beta')}: searched to where it is best, a learning rate "
        "of {fashion('BADM euclidean')['lr']}, it takes as many steps as Adam and ends slightly "
        "lower, their ranges overlapping. That is "
        "{fashion('BADM euclidean')['lr'] / printed_steps()[-1]} times the longest step that the "
        "paper's penalties make and "
        "{fashion('BADM euclidean')['lr'] / printed_steps()[0]} times the shortest.",
        "lowest validation loss after {fashion_median('SOAP', 'stop')} of the "
        "{fashion_setting('steps')} steps and overfit",
        "are sooner at {100 * fashion_setting('target')} % with the tuning seed: after "
        "{fashion_tuning('BADM spectral', 0.003)}, {fashion_tuning('Muon', 0.003)}, "
        "{fashion_tuning('SOAP', 0.003)} and {fashion_tuning('BADM kronecker', 0.003)} steps.",
        "It has the memory of the paper's first task, "
        "{setting(*DIGITS, 'badm-printed', 'beta')}, in all tables but the first.",
        "{task(*CIFAR)['steps']}, {task(*SVHN)['steps']} and {task(*CMATERDB)['steps']} steps), "
        "every method tuned with {word(results('tuned/image-cifar10')['trials'])} trials",
        "fixed beforehand, then {word(seeds('tuned/image-cifar10'))} fresh seeds. Steps are",
        "CIFAR-10: steps to {100 * target('tuned/image-cifar10')} % | accuracy | SVHN: steps to "
        "{100 * target('tuned/image-svhn')} % | accuracy | CMATERdb: steps to "
        "{100 * target('tuned/image-cmaterdb')} % | accuracy",
        "On CIFAR-10 the kronecker metric has {percent(*CIFAR, 'badm-kronecker')} % (95 % "
        "interval {interval(*CIFAR, 'badm-kronecker')}), SOAP, the best of the others, "
        "{with_interval(*CIFAR, 'soap')}; on SVHN {with_interval(*SVHN, 'badm-kronecker')} "
        "against {with_interval(*SVHN, 'soap')}. On CMATERdb RMSProp has the best accuracy, "
        "{percent(*CMATERDB, 'rmsprop')} %, and",
        "perceptron, {task(*DIGITS)['steps']} steps of {task(*DIGITS)['batch_size']}, every "
        "method tuned for validation accuracy with {word(results('digits')['trials'])} trials and "
        "run on {word(seeds('digits'))} fresh seeds",
        "steps to {100 * target('digits')} % validation accuracy (95 % interval) |",
        "Pre-training a masked language model on "
        "{noted(*PRETRAINED, '([0-9,]+) reviews to train')} reviews "
        "({noted(*PRETRAINED, '([0-9,]+) words,')} words, a transformer of "
        "{weights_pretrained() / 1e6} million weights), {task(*PRETRAINED)['steps']} steps of "
        "{task(*PRETRAINED)['batch_size']} with the summed loss of the public example, every "
        "method tuned with {word(results(PRETRAINING)['trials'])} trials for the steps to a loss "
        "fixed beforehand, then {word(seeds(PRETRAINING))} fresh seeds",
        "steps to a validation loss of {target(PRETRAINING)} (95 % interval) |",
        "are first and level, in {steps(*PRETRAINED, 'badm')} steps where RMSProp, the best of "
        "the paper's baselines, takes {steps(*PRETRAINED, 'rmsprop')}.",
        "it had the lowest validation loss, {best_trial(PRETRAINING)['score']} at a learning rate "
        "of {best_trial(PRETRAINING)['setting']['lr']}.",
        "| `fused=True` | against | {parameters() / 1e6} million parameters | "
        "{timed('tiny', 'kronecker')['tensors']} tiny tensors |",
        "Medians of {timed('tiny', 'spectral')['turns']} turns; of "
        "{timed('transformer', 'spectral')['turns']} for the spectral and kronecker metrics in "
        "the first column, which there have the {timed('transformer', 'spectral')['tensors']} "
        "matrices only.",
        "euclidean {memory('euclidean')}, diagonal {memory('diagonal')}, spectral "
        "{memory('spectral')}, kronecker {memory('kronecker')} (SOAP {memory('soap')}), of which "
        "{memory('kronecker') - 2} are covariances and bases.",
        "borrows nothing, spectral {memory('spectral', 'step_peak_ratio_torch')}, kronecker "
        "{memory('kronecker', 'step_peak_ratio_torch')} (figures)",
        "The kronecker metric takes {steps(*MOLECULES, 'badm-kronecker')} steps to a ROC-AUC of "
        "{target('molecule')}, Adam and the default {steps(*MOLECULES, 'adam')};",
        "from a fifth of Adam's (images) to {times_adams(NODES)[-1]} times it (CS)",
        "Runs have {word(seeds(NODES))} seeds unless",
        "(Cora, DNN: {percent(*CORA, 'badm-printed')} % against {percent(*CORA, 'sgd')} %; the "
        "paper has {100 * paper(*CORA, 'badm-printed')} %).",
        "Our Adam is {-gaps('adam', tasks='dnn')[0]} points below the paper's to "
        "{gaps('adam', tasks='dnn')[-1]} above with the DNN and {-gaps('adam', tasks='gnn')[0]} "
        "below to {gaps('adam', tasks='gnn')[-1]} above with the GNN",
        "RMSProp is {-gaps('rmsprop')[0]} below to {gaps('rmsprop')[-1]} above and NAdam "
        "{-gaps('nadam')[0]} below to {gaps('nadam')[-1]} above. AdaGrad is "
        "{-gaps('adagrad')[-1]} to {-gaps('adagrad')[0]} points below the paper in every column.",
        "in all {word(firsts(NODES, 'gnn')['badm-diagonal'])} GNN columns, at "
        "{times_adams(NODES)[0]} to {times_adams(NODES)[-1]} times Adam's learning rate; of the "
        "DNN columns it has {firsts(NODES, 'dnn')['badm-diagonal']}, RMSProp "
        "{firsts(NODES, 'dnn')['rmsprop']} and the default {firsts(NODES, 'dnn')['badm']}.",
        "has the best accuracy on {word(firsts(IMAGES)['badm-kronecker'])} of "
        "{word(len(tasks(IMAGES)))} sets; SOAP, at its own default of "
        "{setting(IMAGES, 'image-cifar10', 'soap')}, "
        "{word(round(times_adams(IMAGES, 'soap')[0]))} times Adam's learning rate, takes the "
        "fewest steps on all {word(quickest(IMAGES)['soap'])}, on "
        "{word(quickest(IMAGES)['badm-kronecker'])} of them as few as the kronecker metric. The "
        "printed form has {scores(IMAGES, 'badm-printed')[0]} to "
        "{scores(IMAGES, 'badm-printed')[-1]} %.",
        "Adam and RMSProp are {-max(gaps('adam', IMAGES) + gaps('rmsprop', IMAGES))} to "
        "{-min(gaps('adam', IMAGES) + gaps('rmsprop', IMAGES))} points below its figures.",
        "RMSProp has a mean IoU of {score(*SCALED, 'rmsprop')}, the diagonal metric, at twice the "
        "learning rate, {score(*SCALED, 'badm-diagonal')}, Adam {score(*SCALED, 'adam')}, the "
        "default {score(*SCALED, 'badm')}; with pixels from 0 to 255 RMSProp has "
        "{score(*DETECTION, 'rmsprop')}, Adam {score(*DETECTION, 'adam')}, the diagonal metric "
        "{score(*DETECTION, 'badm-diagonal')}, the default {score(*DETECTION, 'badm')}. One box "
        "for all images would have "
        "{noted(*DETECTION, 'validation split and ([0-9.]+) on the test')}.",
        "at {times_adams(GAN)[0]} times Adam's learning rate and with a shorter memory, comes to "
        "−8 dB with {arrived('cgan-mnist', 'badm-diagonal')} of {seeds(GAN)} seeds on MNIST and "
        "all {arrived('cgan-fashion', 'badm-diagonal')} on Fashion-MNIST, after "
        "{median_to_level(*GAN_DIGITS, 'badm-diagonal')} and "
        "{median_to_level(*GAN_FASHION, 'badm-diagonal')} of {task(*GAN_DIGITS)['steps']} steps "
        "in the median. {others_that_arrive('badm-diagonal')} run of any other method does",
        "three times the paper's and with {word(seeds(GAN_EXAMPLE))} seed, it takes "
        "{median_to_level(*DIGITS_EXAMPLE, 'badm-diagonal')} and "
        "{median_to_level(*FASHION_EXAMPLE, 'badm-diagonal')} steps, the kronecker metric "
        "{median_to_level(*DIGITS_EXAMPLE, 'badm-kronecker')} on MNIST, RMSProp "
        "{median_to_level(*FASHION_EXAMPLE, 'rmsprop')} on Fashion-MNIST and Adam never.",
        "Adam has a KID of {score(*FLOWERS, 'adam')} (95 % interval "
        "{interval(*FLOWERS, 'adam', 2, 1)}), RMSProp {score(*FLOWERS, 'rmsprop')}, the kronecker "
        "metric {score(*FLOWERS, 'badm-kronecker')}, the diagonal one "
        "{score(*FLOWERS, 'badm-diagonal')} and the default {score(*FLOWERS, 'badm')}.",
        "the order is another: {noise('badm-kronecker')} on the validation split in the kronecker "
        "metric, {noise('badm-diagonal')} in the diagonal one at {times_adams('diffusion')[0]} "
        "times Adam's learning rate, {noise('badm')} in the default, {noise('adam')} with Adam "
        "and {noise('rmsprop')} with RMSProp. In 32×32 pixels, {word(seeds('ddim-flowers-32'))} "
        "seed, KID is {score(*FLOWERS_32, 'adam')} with Adam and "
        "{score(*FLOWERS_32, 'badm-kronecker')} in the kronecker metric.",
        "on {noted(*IMDB, 'and ([0-9,]+) to test')} test reviews the kronecker metric has "
        "{percent(*IMDB, 'badm-kronecker')} %, the diagonal one, at {times_adams(TEXT)[0]} times "
        "that rate, {percent(*IMDB, 'badm-diagonal')}, Adam {percent(*IMDB, 'adam')}, Muon "
        "{percent(*IMDB, 'muon')}, the default {percent(*IMDB, 'badm')}, RMSProp "
        "{percent(*IMDB, 'rmsprop')}, SOAP {percent(*IMDB, 'soap')} and the printed form "
        "{percent(*IMDB, 'badm-printed')}. To {100 * target(TEXT)} % on the validation split Adam "
        "takes {steps(*IMDB, 'adam')} steps, the diagonal metric {steps(*IMDB, 'badm-diagonal')}, "
        "the kronecker metric {steps(*IMDB, 'badm-kronecker')}; the default does not arrive. The "
        "paper's {100 * paper(*IMDB, 'badm-printed')} and {100 * paper(*IMDB, 'adam')} % are "
        "{32 * paper(*IMDB, 'badm-printed')} and {32 * paper(*IMDB, 'adam')} reviews of one batch",
        "products where we do {3 * len(constant('badm.metrics.orthogonal', 'STEPS'))} or, for wide",
        "BADM as printed is at Adam's final loss in {to_the_end_of(*SUMMED, 'badm-printed')} of "
        "{task(*SUMMED)['steps']} steps, SGD with the same step in "
        "{to_the_end_of(*SUMMED, 'sgd-sigma')}, and",
        "at {word(round(times_adams(LANGUAGE, tasks='pretrain')[0]))} times Adam's learning rate, "
        "takes {to_the_end_of(*SUMMED, 'badm-diagonal')} steps, the paper's factor of "
        "{task(*SUMMED)['steps'] / to_the_end_of(*SUMMED, 'adam-sigma')}; so does Adam at that "
        "rate.",
        "at the paper's {setting(*SUMMED, 'adam')}, at which",
        "At the example's {setting(*FINETUNED, 'adam')} the kronecker metric ends at "
        "{percent(*FINETUNED, 'badm-kronecker')} % after fine-tuning, the diagonal one, at "
        "{times_adams(LANGUAGE, tasks='pretrain-example')[0]} times that rate in pre-training and "
        "twice in fine-tuning, at {percent(*FINETUNED, 'badm-diagonal')}, Adam at "
        "{percent(*FINETUNED, 'adam')}, SOAP at {percent(*FINETUNED, 'soap')}, the default at "
        "{percent(*FINETUNED, 'badm')}, the printed form at {percent(*FINETUNED, 'badm-printed')}.",
        "Over a link of 10 Mbit/s a small network with BADM inside is at its target in "
        "{seconds_to_target('Consensus, BADM, K = 50', 10)} seconds with a meeting every 50 steps "
        "and in {seconds_to_target('DDP, BADM', 10)} under DDP; with AdamW inside in "
        "{seconds_to_target('Consensus, AdamW, K = 50', 10)} and "
        "{seconds_to_target('DDP, AdamW', 10)}.",
        "with BADM inside up to a meeting every {close_to_ddp('Consensus, BADM')} steps, with "
        "AdamW up to one every {close_to_ddp('Consensus, AdamW')}.",
        "duals bring {mean(different_data('adam+dual'))} %, plain averaging "
        "{mean(different_data('adam+average'))}, DiLoCo {mean(different_data('adam+diloco'))}, "
        "and step by step, with {labels('every')} times the meetings, "
        "{mean(different_data('adam+step'))} (figures)",
        "its step is 1/σ, at most {printed_steps()[-1]} and elsewhere from {printed_steps()[0]} "
        "to {printed_steps()[-2]}, without",
    ),
    tables=(
        (
            "| optimizer | lr | steps to 86 % validation accuracy | stopped after "
            "| test loss there | test accuracy there |",
            "| {row} | {fashion(row)['lr']} | {fashion_cell(row, 'steps_to_target')} "
            "| {fashion_cell(row, 'stop')} | {fashion_cell(row, 'test_loss', '.4f')} "
            "| {fashion_cell(row, 'test_accuracy', '.1f', 100, ' %')} |",
        ),
        (
            "| method | CIFAR-10: steps to 50 % | accuracy | SVHN: steps to 78 % | accuracy | "
            "CMATERdb: steps to 95 % | accuracy |",
            "| {row} | {steps_cell(*CIFAR, row)} | {percent(*CIFAR, row)} % | "
            "{steps_cell(*SVHN, row)} | {percent(*SVHN, row)} % | {steps_cell(*CMATERDB, row)} | "
            "{percent(*CMATERDB, row)} % |",
        ),
        (
            "| method | best of six lr | test accuracy (95 % interval) | steps to 97 % validation "
            "accuracy (95 % interval) |",
            "| {row} | {lr(*DIGITS, row)} | {with_interval(*DIGITS, row)} | "
            "{steps_cell(*DIGITS, row)} |",
        ),
        (
            "| method | best of six lr | test loss (95 % interval) | steps to a validation loss "
            "of 6.75 (95 % interval) |",
            "| {row} | {lr(*PRETRAINED, row)} | {with_interval(*PRETRAINED, row, 3, 1, '')} | "
            "{steps_cell(*PRETRAINED, row)} |",
        ),
        (
            "| `fused=True` | against | 25 million parameters | 2,000 tiny tensors |",
            "| {row} | `{timed('tiny', row)['theirs']}` | {timed('transformer', row)['ratio']} × "
            "| {timed('tiny', row)['ratio']} × |",
        ),
        (
            "| against Adam | fewer steps | as many | more steps | learning rate |",
            "| {row} | {against_adam(row)[0]} | {against_adam(row)[1]} | {against_adam(row)[2]} |",
        ),
    ),
    constants=(
        ("arXiv 2407.01640", "the paper"),
        ("Python 3.10 or newer", "pyproject.toml"),
        ("| u | 1 buffer |", "what the metric is"),
        ("as Adam | 2 buffers |", "what the metric is"),
        ("values made 1, as Muon | 1 buffer |", "what the metric is"),
        ("as SOAP | 6 buffers |", "what the metric is"),
        ("with all singular values made 1 | 6 buffers |", "what the metric is"),
        ("a unit of SGD's `lr` with momentum 0.9 moves", "1/(1 − 0.9) is ten"),
        ("At 0.003, where their validation loss", "the learning rate that is spoken of"),
        ("CNN of 32, 64 and 64 channels", "badm.bench.models"),
        ("a 64–128–128–10 perceptron", "badm.bench.tasks.digits"),
        ("seeds of 400 test images", "badm.bench.tasks.digits"),
        ("it would do 15 products", "five steps of three products each"),
        ("to 1e-12 in float64 over 200 steps", "tests/test_equivalence.py"),
        ("With pixels from 0 to 1 RMSProp", "the two ways to scale images"),
        ("with pixels from 0 to 255 RMSProp", "the two ways to scale images"),
        ("BADM at −8 dB of KID 2 (MNIST) and 3 (Fashion-MNIST)", "what the paper says"),
        ("memory, comes to −8 dB with", "the level that the paper names"),
        ("In 32×32 pixels", "the size of the images"),
        ("reviews of one batch of 32.", "the batch size of the paper"),
        ("Over a link of 10 Mbit/s a small network", "the link that is spoken of"),
        ("seconds with a meeting every 50 steps", "the setting that is spoken of"),
        ("is at most 1 % above DDP's", "what counts as close in benchmarks/communication.py"),
        ("The dual starts at 0, as", "the method"),
    ),
)
