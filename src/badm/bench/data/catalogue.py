"""Every dataset of the evaluation: what it is and its files.

`badm data list` reads this without torch and numpy: what fetches and checks the files, and imports
their readers, is in ``handlers.py``.
"""

from __future__ import annotations

from badm.bench.data import image_sources, reviews
from badm.bench.data.dataset import Dataset, Files
from badm.bench.names import suggestion

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
BBBP_FILE = "BBBP.csv"
BBBP_SHA256 = "d07a38487aeac5cee5508413e468043ef3097451d2a112701c2d60be9ec6b662"
AIRPLANES = 800  # photographs
# Of photographs and boxes, as the published archive unpacks.
AIRPLANE_FOLDERS = ("101_ObjectCategories/airplanes", "Annotations/Airplanes_Side_2")
FLOWERS102_SUBSET = 4_000  # photographs that are enough, the first


def _graph(name: str, title: str, what: str, size: int, licence: str) -> Dataset:
    return Dataset(
        name=name,
        title=title,
        what=what,
        size=size,
        licence=licence,
        layout=(
            f"graphs/{name}.npz: adj_indptr, adj_indices, adj_shape and attr_data, attr_indices, "
            "attr_indptr, attr_shape (adjacency and features by rows, CSR), labels, class_names"
        ),
        files=(Files(f"graphs/{name}.npz"),),
    )


def _idx(name: str, title: str, what: str, size: int, licence: str) -> Dataset:
    folder = name.replace("-", "_")
    return Dataset(
        name=name,
        title=title,
        what=what,
        size=size,
        licence=licence,
        layout=f"{folder}/{{train,t10k}}-{{images-idx3,labels-idx1}}-ubyte.gz, as published",
        files=tuple(Files(f"{folder}/{file}") for file in IDX_FILES),
    )


NONE_STATED = "none stated"

DATASETS: tuple[Dataset, ...] = (
    _graph(
        "cora",
        "Cora",
        "2,708 papers, 5,429 citations, 1,433 word features, 7 classes",
        96_895,
        "sources MIT and Apache-2.0",
    ),
    _graph(
        "citeseer",
        "Citeseer",
        "3,312 papers, 4,715 links, 3,703 word features, 6 classes",
        196_036,
        "sources MIT",
    ),
    _graph(
        "pubmed",
        "PubMed",
        "19,717 papers, 44,324 links, 500 TF-IDF features, 3 classes",
        4_821_490,
        "sources MIT and Apache-2.0",
    ),
    _graph(
        "cs",
        "Coauthor CS",
        "18,333 authors, 81,894 links, 6,805 keyword counts, 15 classes",
        2_632_711,
        "source MIT",
    ),
    _graph(
        "physics",
        "Coauthor Physics",
        "34,493 authors, 247,962 links, 8,415 keyword counts, 5 classes",
        3_511_588,
        "source MIT",
    ),
    _graph(
        "computers",
        "Amazon Computers",
        "13,752 products, 245,861 links, 767 binary features, 10 classes",
        3_873_092,
        "source MIT",
    ),
    Dataset(
        name="bbbp",
        title="BBBP",
        what="2,050 molecules as SMILES, labelled by whether they pass the blood-brain barrier",
        size=148_743,
        licence="source MIT",
        layout="bbbp/BBBP.csv of MoleculeNet: columns num, name, p_np, smiles",
        files=(Files(f"bbbp/{BBBP_FILE}", sha256=BBBP_SHA256),),
    ),
    _idx(
        "mnist",
        "MNIST",
        "28×28 grey digits, 10 classes; 60,000 + 10,000 or first 20,000 + 5,000",
        4_006_705,
        NONE_STATED,
    ),
    _idx(
        "fashion-mnist",
        "Fashion-MNIST",
        "28×28 grey clothes, 10 classes; 60,000 + 10,000 or first 20,000 + 5,000",
        10_926_823,
        "MIT",
    ),
    Dataset(
        name="cifar10",
        title="CIFAR-10",
        what="32×32 colour photographs, 10 classes; 50,000 + 10,000 or first 6,000 + 1,500",
        size=17_452_731,
        licence=NONE_STATED,
        layout=(
            "cifar10/cifar10.npz: x_train, x_test (N, 32, 32, 3) uint8, y_train, y_test int64; "
            "or the official binary version, cifar10/cifar-10-batches-bin/*.bin"
        ),
        files=(Files("cifar10/cifar10.npz"),),
        official=(
            Files("cifar10/cifar-10-batches-bin/data_batch_*.bin", 5),
            Files("cifar10/cifar-10-batches-bin/test_batch.bin"),
        ),
    ),
    Dataset(
        name="svhn",
        title="SVHN",
        what="32×32 digits of house numbers; 73,257 + 26,032 or first 6,000 + 1,500, cropped again",
        size=15_277_426,
        licence=NONE_STATED,
        layout=(
            "svhn/svhn.npz: x_train, x_test (N, 32, 32, 3) uint8, y_train, y_test int64, label 0 "
            "for digit 0; or the official svhn/train_32x32.mat and svhn/test_32x32.mat"
        ),
        files=(Files("svhn/svhn.npz"),),
        official=(
            Files("svhn/train_32x32.mat", sha256=image_sources.SVHN[0].sha256),
            Files("svhn/test_32x32.mat", sha256=image_sources.SVHN[1].sha256),
        ),
    ),
    Dataset(
        name="cmaterdb",
        title="CMATERdb numerals",
        what="32×32 handwritten Bangla, Devanagari and Telugu digits, 10,000 + 2,000",
        size=1_160_193,
        licence="Apache-2.0; also: free for non-commercial use",
        layout=(
            "cmaterdb/{bangla,devanagari,telugu}-{training,testing}-images.npz: images (N, 32, "
            "32, 3) uint8, labels int64"
        ),
        files=(
            Files(
                "cmaterdb/bangla-training-images.npz",
                sha256="502957392649eecad013ac425b54fecc6d06dbc06bc647a46b0cfc6b96e2c130",
            ),
            Files(
                "cmaterdb/bangla-testing-images.npz",
                sha256="d1c9780ba5decc135175a021bd29961cd7316db009f428d8c04b84ba36a6d67a",
            ),
            Files(
                "cmaterdb/devanagari-training-images.npz",
                sha256="e690d54f7c82e12e3c5ba99221672dc3fc7b6ad493e495077f7e26332558ae86",
            ),
            Files(
                "cmaterdb/devanagari-testing-images.npz",
                sha256="1636fa10484100486b96a3e938cee4c6adeddcfb1e91c9dbb5166fb9a260216d",
            ),
            Files(
                "cmaterdb/telugu-training-images.npz",
                sha256="32f9b5b135c8084f0cf646bc6a70358767653b1f8c6d19bd64ad5d5cbf1d9467",
            ),
            Files(
                "cmaterdb/telugu-testing-images.npz",
                sha256="182806a45091da53b4ad98d4425130c0ebbf9bc1bf50fb58b3e5ea65ee33c7c6",
            ),
        ),
    ),
    Dataset(
        name="tf-flowers",
        title="TF Flowers",
        what="3,670 photographs of flowers, 5 classes; originals or shorter side 96 pixels",
        size=17_852_749,
        licence=NONE_STATED,
        layout=(
            "tf_flowers/{daisy,dandelion,roses,sunflowers,tulips}/*.jpg under their original names"
        ),
        files=(
            Files("tf_flowers/daisy/*.jpg", 633),
            Files("tf_flowers/dandelion/*.jpg", 898),
            Files("tf_flowers/roses/*.jpg", 641),
            Files("tf_flowers/sunflowers/*.jpg", 699),
            Files("tf_flowers/tulips/*.jpg", 799),
        ),
    ),
    Dataset(
        name="deepweeds",
        title="DeepWeeds",
        what="photographs of weeds, 9 classes; 17,509 of 256×256 or first 250 of each of 96×96",
        size=10_751_002,
        licence="CC BY 4.0",
        layout=(
            "deepweeds/labels.csv (columns Filename, Label, Species) and deepweeds/images/*.jpg: "
            "labels/labels.csv and the unpacked images.zip of github.com/AlexOlsen/DeepWeeds"
        ),
        files=(
            Files("deepweeds/labels.csv"),
            Files("deepweeds/images/*.jpg", 2250),
        ),
    ),
    Dataset(
        name="caltech-airplanes",
        title="Caltech-101 airplanes",
        what="800 photographs of airplanes, a box around each",
        size=8_219_988,
        licence=NONE_STATED,
        layout=(
            "caltech_airplanes/images/image_NNNN.jpg and "
            "caltech_airplanes/Airplanes_Side_2/annotation_NNNN.mat; or as caltech-101.zip and the "
            "two archives in it unpack, caltech_airplanes/101_ObjectCategories/airplanes and "
            "caltech_airplanes/Annotations/Airplanes_Side_2"
        ),
        files=(
            Files("caltech_airplanes/images/image_*.jpg", AIRPLANES),
            Files("caltech_airplanes/Airplanes_Side_2/annotation_*.mat", AIRPLANES),
        ),
        official=(
            Files(f"caltech_airplanes/{AIRPLANE_FOLDERS[0]}/image_*.jpg", AIRPLANES),
            Files(f"caltech_airplanes/{AIRPLANE_FOLDERS[1]}/annotation_*.mat", AIRPLANES),
        ),
    ),
    Dataset(
        name="flowers102",
        title="Oxford Flowers 102",
        what="photographs of flowers, 102 classes; 8,189 or the first 4,000, shorter side 72",
        size=11_918_273,
        licence=NONE_STATED,
        layout=(
            "flowers102/jpg/image_NNNNN.jpg, flowers102/imagelabels.mat and flowers102/setid.mat, "
            "as published"
        ),
        files=(
            Files("flowers102/imagelabels.mat", sha256=image_sources.FLOWERS102_LABELS.sha256),
            Files("flowers102/setid.mat", sha256=image_sources.FLOWERS102_SETS.sha256),
            Files("flowers102/jpg/image_*.jpg", FLOWERS102_SUBSET),
        ),
    ),
    Dataset(
        name="imdb",
        title="IMDB reviews",
        what="film reviews, good or bad; 25,000 + 25,000 or the first 10,000 + 5,000",
        size=8_135_476,
        licence=NONE_STATED,
        layout=(
            "imdb/train.jsonl.gz and imdb/test.jsonl.gz: an object with id, label (1 is good), "
            "rating and text on each line; or as aclImdb_v1.tar.gz unpacks, "
            "imdb/aclImdb/{train,test}/{neg,pos}/*.txt"
        ),
        files=tuple(Files(f"imdb/{reviews.file_name(part)}") for part in reviews.PARTS),
        official=tuple(
            Files(f"imdb/{reviews.OFFICIAL}/{part}/{name}/*.txt", 12_500)
            for part in reviews.PARTS
            for name in reviews.CLASSES
        ),
    ),
    Dataset(
        name="camelyon",
        title="PatchCamelyon",
        what="96×96 patches of lymph nodes, tumour or not; 262,144 + 32,768 + 32,768",
        size=9_060_024_320,
        licence="CC0",
        layout=(
            "camelyon/camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5, the official "
            "files after gunzip: x (N, 96, 96, 3) uint8, y (N, 1, 1, 1) uint8"
        ),
        files=(
            Files("camelyon/camelyonpatch_level_2_split_train_x.h5"),
            Files("camelyon/camelyonpatch_level_2_split_train_y.h5"),
            Files("camelyon/camelyonpatch_level_2_split_valid_x.h5"),
            Files("camelyon/camelyonpatch_level_2_split_valid_y.h5"),
            Files("camelyon/camelyonpatch_level_2_split_test_x.h5"),
            Files("camelyon/camelyonpatch_level_2_split_test_y.h5"),
        ),
    ),
    Dataset(
        name="digits",
        title="Digits",
        what="1,797 grey digits of 8×8 pixels, 10 classes",
        size=0,
        licence="ships with scikit-learn (BSD-3-Clause)",
        layout="no files: sklearn.datasets.load_digits has the data",
    ),
)


def find(name: str) -> Dataset:
    """Return the dataset of that name; ``ValueError`` suggests the nearest names.

    >>> find("fashion-mnist").title
    'Fashion-MNIST'
    >>> find("fashion_minst")
    Traceback (most recent call last):
    ValueError: no dataset is called 'fashion_minst'; did you mean fashion-mnist?
    """
    names = {dataset.name: dataset for dataset in DATASETS}
    if name in names:
        return names[name]
    meant = suggestion(name, names) or f"there are {', '.join(names)}"
    raise ValueError(f"no dataset is called {name!r}; {meant.strip()}")
