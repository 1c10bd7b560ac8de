"""What docs/results.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

RESULTS = PageClaims(
    claims=(
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
        "a transformer of {parameters() / 1e6} million parameters, "
        "{timed('tiny', 'kronecker')['tensors']} tiny tensors,",
        "euclidean {memory('euclidean')}, diagonal {memory('diagonal')}, spectral "
        "{memory('spectral')}, kronecker {memory('kronecker')} (SOAP {memory('soap')}), of which "
        "{memory('kronecker') - 2} are covariances and bases.",
        "borrows nothing, spectral {memory('spectral', 'step_peak_ratio_torch')}, kronecker "
        "{memory('kronecker', 'step_peak_ratio_torch')} (figures)",
        "precision it does {3 * len(constant('badm.metrics.orthogonal', 'STEPS'))} products, or",
        "at commit {results('startup')['before']} and at {results('startup')['after']}",
        "the median over {word(results('startup')['turns'])} turns",
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
            "| `fused=True` | against | transformer | tiny | mixed | convolutional | embedding |",
            "| {row} | `{step_time_rival(row)}` | {step_times(row, 'transformer')} | "
            "{step_times(row, 'tiny')} | {step_times(row, 'mixed')} | "
            "{step_times(row, 'convolutional')} | {step_times(row, 'embedding')} |",
        ),
        (
            "| command | seconds before | seconds now | ratio |",
            "| {row} | {startup(row)['seconds_before']} | {startup(row)['seconds_after']} | "
            "{startup(row)['ratio']} |",
        ),
    ),
    constants=(
        ("At 0.003, where their validation loss", "the learning rate that is spoken of"),
        ("CNN of 32, 64 and 64 channels", "badm.bench.models"),
        ("a 64–128–128–10 perceptron", "badm.bench.tasks.digits"),
        ("seeds of 400 test images", "badm.bench.tasks.digits"),
        ("where Muon does 15", "five steps of three products each"),
        ("were up to three times as long", "rounded from ratio_min and ratio_max"),
    ),
)
