"""Example programs. In an installed package they are ``luna_fairseq.examples``."""
