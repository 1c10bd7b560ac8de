"""The commands of ``badm``, one file each; they need the extra ``badm[bench]``."""
