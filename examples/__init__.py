"""Example programs. An installed package contains them as ``luna_fairseq.examples``."""
