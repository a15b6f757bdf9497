"""Packaging of luna_fairseq.

``ops``, ``modules`` and ``optim`` need torch alone, so torch is the only requirement. All other dependencies
are extras, including fairseq (``pip install "luna_fairseq[fairseq]"``). Many users have a fork or a checkout
of fairseq, installed under another name, and a requirement would install a second copy over it.
"""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


def read_version() -> str:
    """Return the version in luna_fairseq/__init__.py without importing the package."""
    text = (HERE / "luna_fairseq" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError('luna_fairseq/__init__.py has no line like: __version__ = "0.2.0"')
    return match.group(1)


def read_readme() -> str:
    """Return the text of README.md, or "" if the file does not exist."""
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


class CleanBuild(build_py):
    """Build that first removes the files of an earlier build, some of which may have been deleted since."""

    def run(self) -> None:
        if not getattr(self, "editable_mode", False):  # setuptools 64 and later
            shutil.rmtree(Path(self.build_lib) / "luna_fairseq", ignore_errors=True)
        super().run()


# luna_fairseq/requirements.py has the names of these extras for messages about missing packages.
FAIRSEQ = [
    'fairseq-fixed==0.12.3.1; python_version >= "3.11"',
    'fairseq==0.12.2; python_version < "3.11"',
    "numpy",
    "PyYAML",
    "sacrebleu>=2.0",
    "scikit-learn",  # metrics of fine-tuned tasks
    "sentencepiece",
    "tensorboardX",  # --tensorboard-logdir; without it fairseq prints a request for it at every start
    "tqdm",
]
MOSES = ["sacremoses>=0.0.53", "subword-nmt>=0.3.8"]
LRA = ["pillow"]
REPORT = ["matplotlib"]
HUGGINGFACE = ["safetensors", "tokenizers", "transformers>=4.40"]
ONNX = [
    *HUGGINGFACE,
    'onnx; python_version >= "3.11"',
    'onnxruntime; python_version >= "3.11"',
    'onnxscript; python_version >= "3.11"',
]
DOCS = [
    'mkdocs-material>=9.5; python_version >= "3.10"',
    'mkdocstrings[python]>=0.24; python_version >= "3.10"',
]
PROSE = ["codespell", 'proselint; python_version >= "3.11"']
# Triton's interpreter runs the GPU kernels on a CPU.
TEST = [
    "pytest>=7",
    "pytest-cov",
    "pytest-xdist",
    "hypothesis",
    "scikit-learn",
    "tensorboardX",
    "triton>=3.0; platform_system == 'Linux'",
    # Drives the Chromium that scripts/setup_browser.sh installs; the pages are the same on every engine.
    "playwright; python_version >= '3.11'",
    *ONNX,
    "accelerate; python_version >= '3.11'",  # transformers' Trainer asks for it
]

BESIDE = {"luna_fairseq.configs": "configs", "luna_fairseq.examples": "examples"}

setup(
    name="luna_fairseq",
    cmdclass={"build_py": CleanBuild},
    version=read_version(),
    description="Luna (Linear Unified Nested Attention) as a fairseq plugin, with the Apollo optimizer",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    author="the luna_fairseq authors",
    project_urls={
        "Paper": "https://arxiv.org/abs/2106.01540",
        "Authors' code": "https://github.com/XuezheMax/fairseq-apollo",
        "fairseq": "https://github.com/facebookresearch/fairseq",
    },
    license="MIT",
    python_requires=">=3.8",
    # Recipes and examples lie beside the package in a checkout, and within it where it is installed.
    packages=[*find_packages(include=["luna_fairseq", "luna_fairseq.*"]), *BESIDE],
    package_dir=BESIDE,
    package_data={
        "luna_fairseq": ["py.typed", "*.md", "*/*.md", "*/*/*.md", "report/assets/*"],
        "luna_fairseq.configs": ["*.md", "*.yaml", "*/*.yaml"],
    },
    install_requires=["torch>=1.13"],
    extras_require={
        "fairseq": FAIRSEQ,
        "moses": MOSES,
        "lra": LRA,
        "report": REPORT,
        "huggingface": HUGGINGFACE,
        "onnx": ONNX,
        # Without fairseq itself, which scripts/setup_venv.sh installs first and keeps if it is a fork.
        "dev": [*FAIRSEQ[2:], *MOSES, *LRA, *REPORT, *TEST, *DOCS, "ruff", "mypy", *PROSE],
    },
    entry_points={
        "console_scripts": [
            "luna-average-checkpoints = luna_fairseq.commands.average_checkpoints:main",
            "luna-demo-corpus = luna_fairseq.examples.demo_corpus:main",
            "luna-engine = luna_fairseq.engine.listing:main",
            "luna-evaluate = luna_fairseq.translation.evaluate:main",
            "luna-evaluate-task = luna_fairseq.masked_lm.evaluate_task:main",
            "luna-export-huggingface = luna_fairseq.huggingface.export:main",
            "luna-export-onnx = luna_fairseq.huggingface.export_onnx:main",
            "luna-finetune = luna_fairseq.masked_lm.finetune:main",
            "luna-import-huggingface = luna_fairseq.huggingface.import_checkpoint:main",
            "luna-lra-seeds = luna_fairseq.lra.seeds:main",
            "luna-make-shortlist = luna_fairseq.translation.make_shortlist:main",
            "luna-prepare-bitext = luna_fairseq.translation.prepare_bitext:main",
            "luna-prepare-iwslt15-en-vi = luna_fairseq.translation.prepare_iwslt15_en_vi:main",
            "luna-prepare-lra = luna_fairseq.lra.prepare:main",
            "luna-prepare-task = luna_fairseq.masked_lm.prepare_task:main",
            "luna-prepare-text = luna_fairseq.masked_lm.prepare_text:main",
            "luna-prepare-wmt14-en-de = luna_fairseq.translation.prepare_wmt14_en_de:main",
            "luna-recipes = luna_fairseq.commands.show_recipes:main",
            "luna-report = luna_fairseq.report.training:main",
            "luna-score = luna_fairseq.translation.score:main",
            "luna-show = luna_fairseq.report.show:main",
            "luna-train = luna_fairseq.commands.train:main",
            "luna-train-bitext = luna_fairseq.translation.train_bitext:main",
        ]
    },
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(8, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    zip_safe=False,
)
