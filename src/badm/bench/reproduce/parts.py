"""The tables of the paper as data: which methods on which tasks make each part of it.

A further part is one more entry of ``PARTS``. The scores of the paper are not here: every task
states its own (``Task.paper``).
"""

from __future__ import annotations

from badm.bench.names import suggestion
from badm.bench.reproduce.part import (
    PaperPart,
    StepsToLevels,
    StepsToMatch,
    SubstituteTasks,
    SuspectScores,
    TableSpec,
)


class UnknownPart(ValueError):
    """The paper has no such part; the message says which come near."""


def find(name: str) -> PaperPart:
    """The part of that name.

    >>> find("molecule").methods[:2]
    ('rmsprop', 'adam')
    >>> find("molecules")
    Traceback (most recent call last):
    badm.bench.reproduce.parts.UnknownPart: the paper has no part 'molecules'; did you mean \
molecule? There are node-classification, molecule, image-classification, detection, \
image-generation, image-generation-example, diffusion, text-classification, language-model
    """
    if name not in PARTS:
        raise UnknownPart(
            f"the paper has no part {name!r}; {suggestion(name, PARTS)}There are {', '.join(PARTS)}"
        )
    return PARTS[name]


# BADM is here as printed, under the paper's name, and in the metrics of this library.
OURS = ("badm-diagonal", "badm", "badm-kronecker")
NAMES = {
    "sgd": "SGD",
    "adagrad": "AdaGrad",
    "dladmm": "dlADMM",
    "rmsprop": "RMSProp",
    "adam": "Adam",
    "nadam": "NAdam",
    "badm-printed": "BADM",
}
GRAPHS = {
    "Cora": "cora",
    "Citeseer": "citeseer",
    "PubMed": "pubmed",
    "Physics": "physics",
    "CS": "cs",
    "Computers": "computers",
}


def _on_graphs(network: str) -> dict[str, str]:
    return {heading: f"node-{graph}-{network}" for heading, graph in GRAPHS.items()}


NODE_CLASSIFICATION = PaperPart(
    "node-classification",
    "Table 1: test accuracy of node classification",
    (
        TableSpec(
            "DNN",
            _on_graphs("dnn"),
            ("sgd", "adagrad", "dladmm", "rmsprop", "adam", "nadam", "badm-printed", *OURS),
            {
                "dladmm": SubstituteTasks(
                    tuple(_on_graphs("mlp").values()),
                    "dlADMM cannot train networks with BatchNorm: its row is of plain F–32–32–C "
                    "perceptrons (node-<graph>-mlp).",
                )
            },
        ),
        TableSpec(
            "GNN",
            _on_graphs("gnn"),
            ("sgd", "adagrad", "rmsprop", "adam", "nadam", "badm-printed", *OURS),
        ),
    ),
    NAMES,
    (
        SuspectScores(
            tuple(
                (f"node-{graph}-{network}", method)
                for graph, method in (
                    ("physics", "sgd"),
                    ("pubmed", "adagrad"),
                    ("computers", "adagrad"),
                )
                for network in ("dnn", "gnn")
            ),
            "The paper has the same score for the DNN and the GNN, to the last digit: suspect.",
        ),
    ),
    (
        "The paper has no dlADMM row for the GNN.",
        "The paper states neither epochs, seeds nor repeats. The paper's scale has here the 300 "
        "epochs of the public Keras example, without its early stopping.",
        "Test sets of the paper, recovered from the rounding of its scores: Cora 1,325 nodes "
        "(fits all but dlADMM), Citeseer 994, Computers 4,126, PubMed consistent with 5,916; of "
        "Physics and CS they cannot be determined. On Cora, BADM is 14 nodes (DNN) and 11 nodes "
        "(GNN) ahead of Adam: within the noise of the split, whose standard error is about 1.2 "
        "points.",
        "Of speed the paper says that BADM reaches its final accuracy on Computers in 2,300 "
        "iterations and on Physics in 700, the others in at least 6,800 and 1,380.",
        "As printed, BADM's effective step is 1/σ without scaling by coordinate: SGD with a "
        "memory. That is hard to square with its scores in the paper.",
        "badm-diagonal has the paper's penalties too, so that its step is 1/σ: 1.25 to 2.5 times "
        "the learning rate of the others, on CS 20 times. Where runs are short, a longer step "
        "leads: this table does not say which method is best, `badm compare` with its tuned "
        "protocol does.",
    ),
)

MOLECULE = PaperPart(
    "molecule",
    "Molecules: ROC-AUC on BBBP",
    (TableSpec("MPNN", {"BBBP": "bbbp"}, ("rmsprop", "adam", "badm-printed", *OURS)),),
    NAMES,
    notes=(
        "The paper shows curves of accuracy only: there are no numbers to set beside these. It "
        "says that BADM has the best training accuracy and ties with Adam on the test, and that "
        "RMSProp is lower.",
    ),
)

IMAGES = PaperPart(
    "image-classification",
    "Table 2: test accuracy of image classification",
    (
        TableSpec(
            "CNN",
            {
                "CIFAR-10": "image-cifar10",
                "SVHN": "image-svhn",
                "Weeds": "image-deepweeds",
                "CMATERdb": "image-cmaterdb",
                "Camelyon": "image-camelyon",
                "Flowers": "image-flowers",
            },
            ("rmsprop", "adam", "badm-printed", *OURS, "muon", "soap"),
        ),
    ),
    NAMES,
    (
        SuspectScores(
            tuple(("image-flowers", name) for name in ("rmsprop", "adam", "badm-printed")),
            "54, 55 and 59 of 64, cut after four digits: the accuracy on one batch. The paper's "
            "lead of 6 points is four images.",
        ),
        SuspectScores(
            tuple(("image-cmaterdb", name) for name in ("rmsprop", "adam", "badm-printed")),
            "974, 974 and 975 of 1,000 images: the paper's lead is one image.",
        ),
    ),
    (
        "The paper describes 3×3 convolutions with ReLU, pooling after each, and a dense layer of "
        "64; it lists no channels. Here they are 32, 64 and 64 for 32×32 images, as in the public "
        "tutorial for CIFAR-10, and four or five blocks for larger ones.",
        "At cpu scale there are 6,000 images of CIFAR-10 and SVHN to train and validate with, not "
        "50,000 and 73,257: scores are lower for every method.",
    ),
)

DETECTION = PaperPart(
    "detection",
    "Object detection: mean IoU of a vision transformer",
    (
        TableSpec(
            "ViT",
            {"pixels 0–255": "detection", "pixels 0–1": "detection-scaled"},
            ("rmsprop", "adam", "badm-printed", *OURS, "muon"),
        ),
    ),
    NAMES,
    notes=(
        "The IoU is over all test images; the public example looks at the first ten, and of how "
        "many the paper's scores are is not known.",
        "SOAP is not here: it decomposes matrices of 3,136 and 3,072 rows, and its steps take five "
        "times as long as their gradients.",
    ),
)

OF_GANS = ("rmsprop", "adam", "adam-sigma", "badm-printed", *OURS, "muon", "soap")
GENERATION = PaperPart(
    "image-generation",
    "Image generation: KID of a conditional GAN",
    (
        TableSpec(
            "Conditional GAN",
            {"MNIST": "cgan-mnist", "Fashion-MNIST": "cgan-fashion"},
            OF_GANS,
        ),
    ),
    NAMES,
    notes=(
        "The paper shows curves of KID only: there are no numbers to set beside these.",
        "A test score is that of the weights with the best validation KID on the way, as KID goes "
        "up and down in the course of a run.",
        "badm-diagonal has the paper's penalties and with them a step of 1/σ, 2.5 times the "
        "learning rate of Adam; adam-sigma is Adam with that step, to tell the one from the other. "
        "What is left is the memory, 0.6 against Adam's 0.9: short ones are known to suit GANs.",
    ),
    steps_to_levels=(
        StepsToLevels(
            "cgan-mnist",
            "adam",
            "The paper says that BADM comes to −8 dB at least 2 times as fast as Adam and RMSProp.",
            level=-8,
        ),
        StepsToLevels(
            "cgan-fashion",
            "adam",
            "The paper says that BADM comes to −8 dB at least 3 times as fast as Adam and RMSProp.",
            level=-8,
        ),
    ),
)

# A part of its own, to be made apart: the paper says nothing of it.
GENERATION_AS_IN_EXAMPLE = PaperPart(
    "image-generation-example",
    "Image generation: KID of a conditional GAN at the learning rate of the public example",
    (
        TableSpec(
            "Conditional GAN",
            {"MNIST": "cgan-mnist-example", "Fashion-MNIST": "cgan-fashion-example"},
            OF_GANS,
        ),
    ),
    NAMES,
    notes=(
        "At the paper's 1e-4 few of the images are like any digit or garment at the end of a run "
        "at cpu scale. Here every method has the 3e-4 of the public example instead, and BADM, "
        "where it has the paper's penalties, a third of them.",
    ),
    steps_to_levels=tuple(
        StepsToLevels(
            f"cgan-{images}-example",
            "adam",
            "The paper speaks of its own learning rate only.",
            level=-8,
        )
        for images in ("mnist", "fashion")
    ),
)

DIFFUSION = PaperPart(
    "diffusion",
    "Image generation: KID of a diffusion model on Oxford Flowers 102",
    (
        TableSpec(
            "DDIM",
            {"Flowers": "ddim-flowers"},
            ("rmsprop", "adam", "badm-printed", *OURS, "muon", "soap"),
        ),
    ),
    NAMES,
    notes=(
        "The paper shows curves of KID only: there are no numbers to set beside these.",
        "The example goes on for 50 epochs and more, 25,550 steps of 64×64 images, and its author "
        "has a KID of 0.26 over Inception-V3 with this loss. At cpu scale there are 600 steps of "
        "16×16 images, at the end of which flowers are to be seen.",
        "Before the first step all samples are noise, and the features of a classifier that has "
        "never seen noise do not find it far from flowers: a KID near that of step 0 may be of "
        "noise, as it is for the printed form. Look at the samples as well.",
    ),
    steps_to_levels=(
        StepsToLevels(
            "ddim-flowers",
            "adam",
            "The paper says that BADM comes to a given KID in the fewest steps, ahead of Adam and "
            "RMSProp.",
        ),
    ),
)

# In the paper's curves BADM is compared with Adam and RMSProp.
ON_TEXTS = ("rmsprop", "adam", "badm-printed", *OURS, "muon", "soap")
ONE_BATCH = ("rmsprop", "adam", "badm-printed")

TEXTS = PaperPart(
    "text-classification",
    "Text classification: test accuracy on IMDB",
    (TableSpec("CNN", {"IMDB": "text-imdb"}, ON_TEXTS),),
    NAMES,
    (
        SuspectScores(
            tuple(("text-imdb", name) for name in ONE_BATCH),
            "30, 29 and 30 of 32, cut after four digits: the accuracy on one batch. The paper's "
            "lead over Adam is one review.",
        ),
    ),
    (
        "The paper's 5,000 test reviews are the validation part of the public example; here the "
        "official test reviews are the test split.",
        "The paper says that the loss of BADM falls steeply between iterations 400 and 1,000.",
    ),
)

# As printed, BADM is SGD with a memory and a step of 1/σ: the controls have that step, and no dual.
CONTROLS = ("sgd-sigma", "adam-sigma")
UP_TO_FOUR = (
    "The paper says that BADM takes up to 4 times less computation than Adam and RMSProp to "
    "pre-train."
)
LANGUAGE = PaperPart(
    "language-model",
    "Masked language model: loss of pre-training and accuracy after fine-tuning on IMDB",
    (
        TableSpec("Pre-training, summed loss", {"IMDB": "mlm-pretrain"}, (*ON_TEXTS, *CONTROLS)),
        TableSpec(
            "Pre-training, mean loss",
            {"IMDB": "mlm-pretrain-mean"},
            ("rmsprop", "adam", "badm-printed", "sgd-sigma"),
        ),
        TableSpec("Fine-tuning", {"IMDB": "mlm-finetune"}, (*ON_TEXTS, "sgd-sigma")),
        TableSpec(
            "Ten times the paper's learning rate",
            {"pre-training": "mlm-pretrain-example", "fine-tuning": "mlm-finetune-example"},
            ON_TEXTS,
        ),
    ),
    NAMES,
    (
        SuspectScores(
            tuple(("mlm-finetune", name) for name in ONE_BATCH),
            "29 of 32, cut after four digits: the accuracy on one batch, the same for all three.",
        ),
    ),
    (
        "The public example differentiates the sum of the losses of all hidden words. Adam does "
        "not notice, nor do the others that scale by coordinate, which are not run with the mean "
        "again; RMSProp does as Keras has it, with its ε inside the root. A plain gradient step, "
        "and BADM's as printed, become hundreds of times longer: sgd-sigma, SGD with BADM's step "
        "1/σ, shows how much of its speed is that.",
        "badm-diagonal has the paper's penalties and with them a step of 1/σ, five times the "
        "learning rate of Adam when pre-training; adam-sigma is Adam with that step.",
        "Fine-tuning starts from what the same method has pre-trained with the summed loss.",
        "At the paper's learning rate of 1e-4 pre-training at cpu scale comes to the frequencies "
        "of words, a loss of about 6.8, and no further. An encoder that gives the same for all "
        "texts is no start for fine-tuning, and accuracies stay near chance. So the last table is "
        "at the learning rate of the public example, 1e-3, with a tenth of the penalties.",
    ),
    (
        StepsToMatch("mlm-pretrain", "adam", UP_TO_FOUR),
        StepsToMatch("mlm-pretrain-mean", "adam", UP_TO_FOUR),
        StepsToMatch("mlm-pretrain-example", "adam", UP_TO_FOUR),
    ),
)

PARTS = {
    part.name: part
    for part in (
        NODE_CLASSIFICATION,
        MOLECULE,
        IMAGES,
        DETECTION,
        GENERATION,
        GENERATION_AS_IN_EXAMPLE,
        DIFFUSION,
        TEXTS,
        LANGUAGE,
    )
}
