"""What docs/reproduction.md says in numbers, and what each of them rests on."""

from claims.page_claims import PageClaims

REPRODUCTION = PageClaims(
    claims=(
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
    ),
    tables=(
        (
            "| against Adam | fewer steps | as many | more steps | learning rate |",
            "| {row} | {against_adam(row)[0]} | {against_adam(row)[1]} | {against_adam(row)[2]} |",
        ),
    ),
    constants=(
        ("to 1e-12 in float64 over 200 steps", "tests/test_equivalence.py"),
        ("With pixels from 0 to 1 RMSProp", "the two ways to scale images"),
        ("with pixels from 0 to 255 RMSProp", "the two ways to scale images"),
        ("BADM at −8 dB of KID 2 (MNIST) and 3 (Fashion-MNIST)", "what the paper says"),
        ("memory, comes to −8 dB with", "the level that the paper names"),
        ("In 32×32 pixels", "the size of the images"),
        ("reviews of one batch of 32.", "the batch size of the paper"),
    ),
)
