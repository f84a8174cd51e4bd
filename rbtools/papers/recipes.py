"""The pipes that reproduce papers, at three scales: tiny (a test that takes seconds), mini (digits), full
(the paper's). Each pipe resumes from the store. Below full scale the built-in digits replace the paper's data
sets, and distances are about four times as large, since digits are easy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RESIDUAL = ("cinic10", "svhn", "cifar100")
_SIDES = ":side=32:patch=4"
_VIT_L = "vit_large_patch16_224.augreg_in21k_ft_in1k"
_TIMM = (
    *("deit_tiny_patch16_224.fb_in1k", "deit_small_patch16_224.fb_in1k"),
    *("vit_base_patch16_224.orig_in21k_ft_in1k", _VIT_L),
)
VITS = ",".join(f"timm:{name}{_SIDES}" for name in _TIMM)
_RESNETS = [f"{data}/{network}" for network in ("resnet18", "wrn-28-10") for data in RESIDUAL]
PAIRS = " ".join(
    [
        *("cifar10/wrn-28-10", "cifar10/vgg19", *_RESNETS, "svhn/vgg19", "cifar100/vgg19"),
        *("tinyimagenet/resnet18", "tinyimagenet/resnet34", "imagenet50/resnet18", "mnist/simplecnn"),
    ]
)


@dataclass(frozen=True)
class Setting:
    """The parameters of a recipe. scale: mini, full or tiny. data, weights: folders of data sets and of
    NAS-Bench-201's published weights.
    jobs: trainings at once, or auto or ray. shard: I/N, a part of the records. dataset: another data set for
    the curves of wci. pairs: further SET/NETWORK of PRBench. vits: networks of timm for its tables 8 and 9,
    with commas; vit_s: the file of ViT-S's weights. None: the scale's own, "" leaves them out.
    """

    scale: str
    data: str = "data"
    weights: str = "data/nas-bench-201"
    jobs: str = "2"
    shard: str | None = None
    dataset: str = ""
    pairs: str | None = None
    vits: str | None = None
    vit_s: str | None = None

    def at(self, mini: str, full: str, tiny: str) -> str:
        """The words of this scale."""
        return {"mini": mini, "full": full, "tiny": tiny}[self.scale]

    def pairs_of_scale(self) -> str:
        small = "digits/simplecnn"
        return self.at(f"digits/nb201-11472 {small}", PAIRS, small) if self.pairs is None else self.pairs

    def vits_of_scale(self) -> str:
        return self.at("", VITS, "") if self.vits is None else self.vits

    def vit_s_of_scale(self) -> str:
        file = f"{self.data}/vit_small_p16_224-15ec54c9.pth"
        return self.at("", file, "") if self.vit_s is None else self.vit_s


# --- PRBench: tables 4, 5, 8 to 12 and the composite figure -----------------------------------------------

_PR_METHODS = "erm,corruption,cvar,at-pr,pgd,trades,mart,alp,clp,kl-pgd"
_PR_OF_TABLE_8 = "erm,corruption,pgd,trades,mart,clp,kl-pgd"
_PR_OF_TABLE_11 = _PR_METHODS.replace("at-pr,", "")
# By data set: distance, step, first radius of noise, radii, and images of the generalisation error. The files
# of CINIC-10 and ImageNet-50 come class by class, so that their first thousand are of one.
_PR_OF_SET = {
    "mnist": {"eps": "76.5", "step": "0.1", "first": "0.3", "gamma": "0.3,0.35,0.4,0.45"},
    "svhn": {"step": "1.25/255"},
    "cinic10": {"images": "--n 1000 --n-train 1000"},
    "imagenet50": {"images": "--n 1000 --n-train 1000"},
}
_PR_FORMS = dict.fromkeys(("tinyimagenet", "imagenet50"), ":stem=cifar:pool=4x4")


def _evaluated(s: Setting, dataset: str = "") -> str:
    """The tools that evaluate a network. Below full scale AutoAttack is without FAB and Square, which take
    most of the time and break no further digit. --kappa, --truncate, --passes above: as PRBench's code."""
    of = {
        "eps": s.at("32", "8", "32"),
        "step": s.at("8/255", "2/255", "8/255"),
        "first": s.at("32/255", "0.03", "32/255"),
        "gamma": s.at("32/255,0.3,0.35,0.4", "0.03,0.08,0.1,0.12", "32/255,0.3,0.35,0.4"),
        "images": s.at("--n-train 355", "--indices 0-999", "--n 5 --n-train 5"),
        **_PR_OF_SET.get(dataset, {}),
    }
    images, n, truncate = of["images"], s.at("", "", "--n 5"), s.at("", "--truncate", "")
    twenty = f"--eps {of['eps']} --step-size {of['step']} --steps {s.at('20', '20', '2')}"
    passes = f"--gamma {of['gamma']} {s.at('', '--passes above', '--samples 3')}"
    first = f"--gamma {of['first']} {s.at('--samples 25', '', '--samples 3')}"
    attack = s.at("--n 50 --attacks apgd-ce,apgd-t", "", "--n 2 --attacks apgd-ce")
    return " | ".join(
        [
            f"rb-attack pgd --eps {of['eps']} --step-size {of['step']} --steps {s.at('10', '10', '1')}"
            f" --iterate last {n}",
            f"rb-attack pgd {twenty} --iterate last {n}",
            f"rb-attack cw {twenty} {s.at('', '--kappa 2', '')} --iterate last {n}",
            f"rb-attack aa --eps {of['eps']} {attack}",
            f"rb-pr {passes} {truncate} --rho 0.1,0.05,0.01 {n}",
            *(f"rb-pr {passes} --rho 0.05 --noise {noise} {n}" for noise in ("gaussian", "laplace")),
            f"rb-ge attack pgd {twenty} --iterate last {n}",
            f"rb-ge pr --gamma {of['gamma']} {s.at('--samples 50', '', '--samples 3')} {truncate} {images}",
            # Table 5 has the generalisation error of PR under the other noises too, at its first radius.
            *(f"rb-ge pr {first} --noise {noise} {images}" for noise in ("gaussian", "laplace")),
        ]
    )


def prbench(s: Setting) -> str:
    small = "--eps 32 --step-size 8 --step-min 4 --step-max 16 --samples 8 --rounds 2 --candidates 3"
    arch = s.at(
        "--index 13714 --cells 1 --channels 8",
        "--arch resnet18 --dataset cifar10",
        "--index 11472 --cells 1 --channels 2",
    )
    tiny = "--eps 32 --step-size 8 --epochs 1 --batch-size 512 --attack-steps 1"
    how = s.at(f"{small} --epochs 6", "--preset prbench-code", tiny)
    noise = s.at("--epochs 6 --eps 32", "--preset prbench-code", "--epochs 1 --batch-size 512 --eps 32")
    filtered = s.at("--eps 32 --step-size 8 --epochs 6", "--preset prbench-code", tiny)
    warm = s.at("2 5 9", "1 2 3 4 5 6 7 8 9", "1")  # one more than m in table 12
    noises = s.at("gaussian laplace", "gaussian laplace", "gaussian")  # tables 5, 9 and 11
    methods = s.at(_PR_METHODS, _PR_METHODS, "erm,pgd")

    def noised(made: str, how: str) -> str:
        """Training with the other kinds of noise."""
        return f"for noise in {noises}; do {made} | rb-train --method corruption {how} --noise $noise; done"

    def at_steps(made: str) -> str:
        """Table 12, with the filter of whole batches, as in the paper's code, and of each image."""
        train = f"rb-train --method trades {filtered} --filter chen-lee --warm-steps $warm"
        return f"for warm in {warm}; do {made} | {train}; {made} | {train} --filter-rule example; done"

    # Table 8, and without ViT-L table 9: ViT-S is timm's of 2020, whose weights are in a file.
    transformers = ""
    files: tuple[tuple[str, str], ...] = ((s.vits_of_scale(), ""),)
    if s.vit_s_of_scale():
        files += ((f"timm:vit_small_patch16_224_2020{_SIDES}", f" --init-file '{s.vit_s_of_scale()}'"),)
    for name, file in files:
        fit = f"--init timm{file} --preset prbench-code --jobs {s.jobs}"
        if name:
            made = f"rb-arch --arch {name} --dataset cifar10"
            transformers += f" {made} | rb-train --method {_PR_OF_TABLE_8} {fit};"
        of_9 = ",".join(one for one in name.split(",") if _VIT_L not in one)
        if of_9:
            transformers += f" {noised(f'rb-arch --arch {of_9} --dataset cifar10', fit)};"
    # Tables 9 to 11: below full scale digits stand for all sets: a second network for 9 and 10, MNIST's for
    # 11.
    further = s.at(
        "--eps 32 --step-size 8 --samples 8 --rounds 2 --epochs 6 --method erm,corruption,cvar,pgd",
        "--preset prbench-code --method",
        f"{how} --method pgd",
    )
    pairs = ""
    for pair in s.pairs_of_scale().split():
        dataset, _, network = pair.partition("/")
        form = " --cells 1 --channels 8" if dataset == "digits" and "nb201" in network else ""
        network += _PR_FORMS.get(dataset, form)
        in_11 = dataset in ("cinic10", "imagenet50", "mnist")
        named = s.at("", f" {_PR_OF_TABLE_11 if in_11 else _PR_METHODS}", "")
        made = f"rb-arch --arch {network} --dataset {dataset}"
        group = f"{made} | rb-train {further}{named} --jobs {s.jobs}; {noised(made, noise)};"
        if pair == "cifar100/resnet18":
            group += f" {at_steps(made)};"
        pairs += f"{{ {group} }} | {_evaluated(s, dataset)}; "
    bound = s.at("--eps 32 --batch-size 20", "--eps 8", "--eps 32 --batch-size 2")
    first = f"rb-arch {arch}"
    return (
        f"{{ {{ {first} | rb-train --method {methods} {how} --jobs {s.jobs}; {noised(first, noise)};"
        f" {at_steps(first)};{transformers} }} | {_evaluated(s)} | rb-measure bound --paper prbench {bound};"
        f" {pairs} }}"
    )


# --- NAS-RobBench-201: tables 1, 4 to 7 ---------------------------------------------------------------------

# #1835, skip connections alone, is the cell of DARTS-V1 in NAS-Bench-201's own experiments; at full scale it
# is among all the others.
_DARTS = "rb-arch --index 1835 --cells 1 --channels 8;"


def _robbench_sample(s: Setting) -> str:
    arch = s.at(
        "--sample 3 --seed 1 --cells 1 --channels 8", "", "--sample 1 --seed 1 --cells 1 --channels 4"
    )
    none = s.at("0 1 2 3 4", "", "0 3")
    return f'for none in {none}; do rb-arch --unique --where "none == $none" {arch}; done'


def nas_robbench_201(s: Setting) -> str:
    how = s.at(
        "--method pgd --eps 32 --step-size 8 --attack-steps 4 --epochs 5 --val 0 --lr 0.1",
        "--preset nasrobbench201 --method pgd --seed 0,1,2",
        "--method pgd --eps 32 --attack-steps 1 --epochs 1 --batch-size 512",
    )
    train = f"rb-train {how} --jobs {s.jobs}"
    # Table 7: the cells that differentiable searches derive, trained like the others.
    search = s.at("--cells 1 --channels 8", "--dataset cifar10", "--cells 1 --channels 4")
    steps = s.at("--epochs 10 --steps 10", "", "--epochs 1 --steps 2")
    derived = (
        f"for search in {s.at('darts advrush', 'darts advrush', 'darts')}; do"
        f" rb-search $search {search} {steps}; done;"
        f" rb-search nasi {search} {s.at('--steps 20', '', '--steps 2')}"
    )
    some = "gaussian_noise,brightness,contrast,jpeg_compression --n 200"
    corrupt = f"rb-corrupt {s.at(some, 'all', 'contrast --n 5')} --severity {s.at('1,5', '1,5', '5')}"
    if s.scale == "full":  # under the published corruptions, which ImageNet16-120 has none of
        networks = (
            f"for classes in 10 100; do rb-arch --unique --dataset cifar$classes | {train} |"
            f" {corrupt} --from '{s.data}/CIFAR-'$classes-C; done;"
            f" rb-arch --unique --dataset imagenet16-120 | {train};"
            f" {{ {derived}; }} | {train} --dataset cifar10 | {corrupt} --from '{s.data}/CIFAR-10-C'"
        )
    else:
        sample = f"{{ {s.at(_DARTS, '', '')} {_robbench_sample(s)}; }} | {train}; {{ {derived}; }} | {train}"
        networks = f"{{ {sample}; }} | {corrupt}"
    far = s.at("--eps 64,128,255", "--eps 16,32,64,128,255", "--eps 64,128,255 --n 5 --steps 3")
    square = s.at("--eps 12,32 --n 100 --queries 200", "--eps 3,8", "--eps 12,32 --n 5 --queries 5")
    autoattack = s.at(
        "--eps 32 --n 50 --attacks apgd-ce,apgd-t", "--eps 8", "--eps 32 --n 2 --attacks apgd-ce"
    )
    kernels = s.at(
        "--kernel twice --attack fgsm,pgd --eps 12,32 --batch-size 20",
        "--preset nasrobbench201",
        "--kernel twice --attack fgsm,pgd --eps 12,32 --batch-size 4",
    )
    near = s.at("--eps 12,32", "--eps 3,8", "--eps 12,32 --n 5")
    return " | ".join(
        [
            f"{{ {networks}; }}",
            f"rb-attack fgsm {near}",
            f"rb-attack pgd {near} --iterate last",
            f"rb-attack pgd {far} --iterate last",
            f"rb-attack square {square} --schedule rescaled",
            f"rb-attack noise {near} {s.at('--samples 20', '', '--samples 2')}",  # table 4 e
            f"rb-attack aa {autoattack}",
            f"rb-measure ntk {kernels}",  # figures 5 and 6 and the scores of table 7, on fresh weights
            f"rb-measure naswot {s.at('--batch-size 64', '', '--batch-size 8')}",
        ]
    )


# --- the robustness dataset of NAS-Bench-201 (Jung et al. 2023): table 1 ------------------------------------


def nas_bench_201_robustness(s: Setting) -> str:
    """At mini the networks of NAS-RobBench-201, whose table 1 compares the two, some of 18 kernel parameters,
    of which figures 7, 28 and 29 are, and the network of figure 30 with neighbours. At full scale nothing is
    trained: the published weights are evaluated, under the published corruptions, which ImageNet16-120 has
    none of.
    """
    small = f"--cells 1 --channels {s.at('8', '', '4')}"
    weights = s.at("", f"--checkpoint '{s.weights}'", "")
    eighteen = f"rb-arch --unique --where 'live_kernel_params == 18' --sample {s.at('5', '', '1')} --seed 1"
    near = f"rb-arch --unique --where 'distance(13714) == 1' --sample {s.at('3', '', '1')} --seed 2"
    some = f"{eighteen} {small}; rb-arch --index 13714 {small}; {near} {small}"
    mini = f"{_DARTS} {_robbench_sample(s)}; {some}"
    full = (
        "for classes in 10 100; do rb-arch --unique --dataset cifar$classes | rb-corrupt all --detail"
        f" --severity 1-5 --from '{s.data}/CIFAR-'$classes-C {weights}; done;"
        " rb-arch --unique --dataset imagenet16-120"
    )
    archs = s.at(mini, full, some)
    trained = "rb-train --method erm --epochs"
    near = s.at("--eps 2,4,8,16,32 --n 200", "--eps 0.1,0.5,1,2,3,4,8", "--eps 8,32 --n 5")
    fgsm = s.at(near, "--eps 0.1,0.5,1,2,3,4,5,6,7,8,255", near)
    corrupted = s.at("all --n 100 --severity 3,4", "", "contrast,brightness --n 5 --severity 3")
    measured = s.at(
        "--batches 2 --batch-size 64",
        "--preset jung2023",
        "--batches 1 --batch-size 2 --probes 1 --solver lanczos --iterations 3",
    )
    return " | ".join(
        [
            f"{{ {archs}; }}",
            s.at(f"{trained} 6 --val 0 --jobs {s.jobs}", "cat", f"{trained} 1 --batch-size 512"),
            f"rb-attack fgsm {fgsm} --detail {weights}",
            f"rb-attack pgd {near} --steps 40 --relative-step 0.0333333 --iterate last --detail {weights}",
            f"rb-attack apgd-ce {near} {s.at('--steps 50', '', '--steps 3')} --detail {weights}",
            f"rb-attack square {near} {s.at('--queries 300', '', '--queries 5')} --detail {weights}",
            f"rb-corrupt {corrupted} --detail" if corrupted else "cat",
            f"rb-measure jacobian,hessian --split train,test --on both {measured} {weights}",
        ]
    )


# --- the Weight-Curvature Index along adversarial training: its curves --------------------------------------


def wci(s: Setting) -> str:
    """Its curves, and lemmas 1 and 2 and theorem 4 of the last weights."""
    data = f"--dataset '{s.dataset}'" if s.dataset else ""
    eps = "--eps 8 --step-size 2" if s.dataset else "--eps 32 --step-size 8"
    archs = s.at(
        f"rb-arch --index 13714 --cells 1 --channels 8 {data}",
        "{ for set in cifar10 cifar100; do rb-arch --arch preactresnet18 --dataset $set; done; }",
        f"rb-arch --index 13714 --cells 1 --channels 2 {data}",
    )
    small = f"--method pgd {eps} --val 0 --lr 0.05 --precision fp32 --attack-steps"
    how = s.at(
        f"{small} 7 --epochs 24 --schedule piecewise --milestones 14,20 --track robust,wci --every 2"
        " --track-n 500",
        "--preset rice2020 --track robust,wci --every 5",
        f"{small} 1 --epochs 3 --batch-size 512 --schedule piecewise --milestones 2"
        " --track robust,wci --every 1 --track-n 5",
    )
    radius = " ".join(eps.split()[:2])
    bound = s.at(f"{radius} --batch-size 128", "--preset rice2020", f"{radius} --batch-size 8 --probes 2")
    regularizers = s.at("none cutout mixup l2", "none cutout mixup l2", "none l2")
    trained = f"{archs} | rb-train {how} --regularize $how"
    return f"{{ for how in {regularizers}; do {trained}; done; }} | rb-measure bound --paper wci {bound}"


# --- the theory of NAS-RobBench-201: bounds and algorithm 1 on its own networks -----------------------------


def theory(s: Setting) -> str:
    """The kernels and bounds are of fresh weights, which are those that algorithm 1 starts from."""
    data = s.at(
        "--dataset digits:classes=3/8", "--dataset cifar10:classes=cat/dog", "--dataset digits:classes=3/8"
    )
    fcnn = s.at("--depth 3 --sample 6", "", "--depth 2 --sample 1 --width 8")
    rescnn = s.at("--depth 3 --sample 3 --width 16", "--sample 24", "--depth 2 --sample 1 --width 4")
    batch = s.at("--batch-size 20", "--batch-size 50", "--batch-size 4")
    sphere = f"--attack-norm sphere{s.at('', '', ' --attack-steps 1')} --eps 0.01 {batch}"
    few = s.at("--step-size 0.0025", "--step-size 0.0025", "--step-size 0.01 --attack-steps 1")
    return (
        f"{{ rb-arch --space fcnn {fcnn} {data}; rb-arch --space rescnn {rescnn} {data}; }}"
        f" | rb-train --preset nasrobbench201-algorithm1 --eps 0.01 {few} --track robust"
        f" --jobs {s.jobs} | rb-attack none"
        f" | rb-measure ntk --kernel joint --logits difference {sphere}"
        f" | rb-measure bound --paper robbench {sphere}"
    )


RECIPES: dict[str, Callable[[Setting], str]] = {
    "nas-bench-201-robustness": nas_bench_201_robustness,
    "nas-robbench-201": nas_robbench_201,
    "prbench": prbench,
    "theory": theory,
    "wci": wci,
}
"""Name of a reproduction -> its pipe, as text for a shell."""
