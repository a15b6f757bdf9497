"""Programs beside the package; in a wheel, ``luna_fairseq.examples``."""
