# Reproductions: recipes of pipes, resumable through the store, at three scales.
#
#   make reproduce-NAME SCALE=mini    some minutes on two cores, on the built-in digits (the default)
#   make reproduce-NAME SCALE=full    the paper's setting; says what data are missing
#   make reproduce-NAME SCALE=tiny    seconds: only to see that it runs
#
# Each writes records to $(REPRODUCED)/NAME-SCALE.jsonl and prints the published values beside ours, and which
# of the paper's claims hold. Run it again and it goes on where it was. JOBS trainings run at once.

REPRODUCED ?= reproduced
JOBS ?= 2
DATA ?= data
WEIGHTS ?= $(DATA)/nas-bench-201

REPRODUCE := reproduce-nas-bench-201-robustness reproduce-nas-robbench-201 reproduce-prbench reproduce-theory \
	reproduce-wci
.PHONY: $(REPRODUCE)

# Where there is bash it runs the pipes: in dash a tool that fails or is killed does not end them, and records
# without its results would take the place of whole ones.
$(REPRODUCE): SHELL := $(firstword $(wildcard /bin/bash /usr/bin/bash) /bin/sh)

# A user's configuration must not decide what is reproduced. A tool that fails ends the recipe, in groups too.
PIPE := (set -o pipefail) 2>/dev/null && set -o pipefail; export RB_CONFIG=none RB_DATA='$(DATA)' \
	RB_STORE='$(REPRODUCED)/store' PATH="$(abspath $(BIN)):$$PATH" $(ONE_THREAD); set -e; mkdir -p '$(REPRODUCED)';
COMPARE = $(BIN)/python rbtools/papers/reproduce_$(subst -,_,$(1)).py --scale $(SCALE)
RECORDS = '$(REPRODUCED)/$(1)-$(SCALE).jsonl'
# Records are written aside and take their place when they are whole and differ: figures compare dates.
ASIDE = '$(REPRODUCED)/new-$(1)-$(SCALE).jsonl'
INTO = > $(ASIDE); { if cmp -s $(ASIDE) $(RECORDS); then rm $(ASIDE); else mv $(ASIDE) $(RECORDS); fi; }
# What differs between scales: $(call at,mini words,full words,tiny words); $(,) is a comma in these.
, := ,
at = $(if $(filter full,$(SCALE)),$(2),$(if $(filter tiny,$(SCALE)),$(3),$(1)))

# --- PRBench: tables 4, 5, 8, 9, 11, 12 and the composite figure ----------------------------------

PR_ARCH := $(call at,--index 13714 --cells 1 --channels 8,--arch resnet18 --dataset cifar10,\
	--index 11472 --cells 1 --channels 2)
PR_SMALL := --eps 32 --step-size 8 --step-min 4 --step-max 16 --samples 8 --rounds 2 --candidates 3
PR_HOW := $(call at,$(PR_SMALL) --epochs 6,--preset prbench-code,--eps 32 --step-size 8 --epochs 1 --attack-steps 2)
PR_FILTER := $(call at,--eps 32 --step-size 8 --epochs 6,--preset prbench-code,--eps 32 --epochs 1 --attack-steps 2)
# One step more than the m of table 12.
PR_WARM := $(call at,2 5 9,1 2 3 4 5 6 7 8 9,1)
PR_ALL := erm,corruption,cvar,at-pr,pgd,trades,mart,alp,clp,kl-pgd
PR_METHODS := $(call at,$(PR_ALL),$(PR_ALL),erm$(,)corruption$(,)pgd)
# Table 5: corruption training with noise of other kinds.
PR_NOISES := $(call at,gaussian laplace,gaussian laplace,gaussian)
PR_NOISE := $(call at,--epochs 6 --eps 32,--preset prbench-code,--epochs 1 --eps 32)

# What evaluates a network: the distance and the step of attacks; the radii of noise, and the first of them; of
# which images the generalisation error is. Below full scale AutoAttack is without FAB and Square, which take
# most of the time and break no further digit. --kappa, --truncate, --passes above: as PRBench's code.
PR_N := $(call at,,,--n 20)
PR_AA := $(call at,--n 50 --attacks apgd-ce$(,)apgd-t,,--n 10 --attacks apgd-ce)
PR_CW := $(call at,,--kappa 2)
PR_UNIFORM := $(call at,,--truncate)
PR_PASSES := $(call at,,--passes above,--samples 3)
PR_GE := $(call at,--samples 50,,--samples 3)
# Table 5 has the generalisation error of PR under the other noises too, at its first radius.
PR_GE_FIRST := $(call at,--samples 25,,--samples 3)
PR_EVALUATE = rb-attack pgd --eps $(1) --step-size $(2) --steps $(call at,10,10,1) --iterate last $(PR_N) | \
	rb-attack pgd --eps $(1) --step-size $(2) --steps $(call at,20,20,2) --iterate last $(PR_N) | \
	rb-attack cw --eps $(1) --step-size $(2) --steps $(call at,20,20,2) $(PR_CW) --iterate last $(PR_N) | \
	rb-attack aa --eps $(1) $(PR_AA) | \
	rb-pr --gamma $(3) $(PR_PASSES) $(PR_UNIFORM) --rho 0.1,0.05,0.01 $(PR_N) | \
	rb-pr --gamma $(3) $(PR_PASSES) --rho 0.05 --noise gaussian $(PR_N) | \
	rb-pr --gamma $(3) $(PR_PASSES) --rho 0.05 --noise laplace $(PR_N) | \
	rb-ge attack pgd --eps $(1) --step-size $(2) --steps $(call at,20,20,2) --iterate last $(PR_N) | \
	rb-ge pr --gamma $(3) $(PR_GE) $(PR_UNIFORM) $(5) | \
	rb-ge pr --gamma $(4) $(PR_GE_FIRST) --noise gaussian $(5) | \
	rb-ge pr --gamma $(4) $(PR_GE_FIRST) --noise laplace $(5)
PR_EPS := $(call at,32,8,32)
PR_STEP := $(call at,8/255,2/255,8/255)
PR_FIRST := $(call at,32/255,0.03,32/255)
PR_REST := 0.3$(,)0.35$(,)0.4
PR_GAMMA := $(PR_FIRST)$(,)$(call at,$(PR_REST),0.08$(,)0.1$(,)0.12,$(PR_REST))
PR_IMAGES := $(call at,--n-train 355,--indices 0-999,--n 20 --n-train 20)

# Table 8: transformers from timm's published weights, fitted to 32 pixels; PR_VITS= leaves them out. ViT-S is
# timm's of 2020, whose weights are in a file; PR_VIT_S= leaves it out.
PR_SIDES := :side=32:patch=4
PR_VITS ?= $(call at,,timm:deit_tiny_patch16_224.fb_in1k$(PR_SIDES)$(,)timm:deit_small_patch16_224.fb_in1k$(PR_SIDES)$(,)timm:vit_base_patch16_224.orig_in21k_ft_in1k$(PR_SIDES),)
PR_VIT_S ?= $(call at,,$(DATA)/vit_small_p16_224-15ec54c9.pth,)
PR_VIT := --dataset cifar10 | rb-train --init timm --preset prbench-code --jobs $(JOBS)
PR_FIT = rb-arch --arch $(1) $(PR_VIT) $(2) --method $(PR_ALL); \
	for noise in $(PR_NOISES); do rb-arch --arch $(1) $(PR_VIT) $(2) --method corruption --noise $$noise; done;
PR_TABLE_8 := $(if $(PR_VITS),$(call PR_FIT,$(PR_VITS))) \
	$(if $(PR_VIT_S),$(call PR_FIT,timm:vit_small_patch16_224_2020$(PR_SIDES),--init-file '$(PR_VIT_S)'))

# Tables 9 and 11: further pairs of data set and network, SET/NETWORK; PR_PAIRS= leaves them out. Below full
# scale digits stand for all sets: a second network for table 9, MNIST's for table 11, and four methods.
PR_RES := cinic10 svhn cifar100
PR_PAIRS ?= $(call at,digits/nb201-11472 digits/simplecnn,cifar10/wrn-28-10 cifar10/vgg19 \
	$(PR_RES:=/resnet18) $(PR_RES:=/wrn-28-10) svhn/vgg19 cifar100/vgg19 tinyimagenet/resnet18 \
	tinyimagenet/resnet34 imagenet50/resnet18 mnist/simplecnn,digits/simplecnn)
PR_FURTHER := $(call at,--eps 32 --step-size 8 --samples 8 --rounds 2 --epochs 6 --method erm$(,)corruption$(,)cvar$(,)pgd,\
	--preset prbench-code --method $(PR_ALL),$(PR_HOW) --method pgd)
# What differs by data set: PR_EPS_SET, PR_STEP_SET, PR_FIRST_SET, PR_GAMMA_SET, PR_IMAGES_SET, PR_FORM_SET.
# The files of CINIC-10 and ImageNet-50 come class by class, so that their first thousand are of one.
PR_EPS_mnist := 76.5
PR_STEP_mnist := 0.1
PR_FIRST_mnist := 0.3
PR_GAMMA_mnist := 0.3$(,)0.35$(,)0.4$(,)0.45
PR_STEP_svhn := 1.25/255
PR_IMAGES_cinic10 := --n 1000 --n-train 1000
PR_IMAGES_imagenet50 := --n 1000 --n-train 1000
PR_FORM_tinyimagenet := :stem=cifar:pool=4x4
PR_FORM_imagenet50 := :stem=cifar:pool=4x4
PR_FORM_digits = $(if $(findstring nb201,$(1)), --cells 1 --channels 8)
of = $(or $(PR_$(1)_$(2)),$(PR_$(1)))
PR_PAIR = rb-arch --arch $(2)$(call PR_FORM_$(1),$(2)) --dataset $(1) | rb-train $(PR_FURTHER) --jobs $(JOBS) | \
	$(call PR_EVALUATE,$(call of,EPS,$(1)),$(call of,STEP,$(1)),$(call of,GAMMA,$(1)),$(call of,FIRST,$(1)),$(call of,IMAGES,$(1)));
PR_MORE = $(foreach pair,$(PR_PAIRS),$(call PR_PAIR,$(patsubst %/,%,$(dir $(pair))),$(notdir $(pair))))
PR_BOUND := $(call at,--eps 32 --batch-size 20,--eps 8,--eps 32 --batch-size 2)

reproduce-prbench: $(VENV)/run.stamp  ## PRBench's tables 4, 5, 8, 9, 11, 12 and composite (SCALE=mini or full)
	@$(call COMPARE,prbench) --need --data '$(DATA)' --timm '$(PR_VITS)' --vit-s '$(PR_VIT_S)' --pairs '$(PR_PAIRS)'
	@$(PIPE) { { \
	  rb-arch $(PR_ARCH) | rb-train --method $(PR_METHODS) $(PR_HOW) --jobs $(JOBS); \
	  for noise in $(PR_NOISES); do rb-arch $(PR_ARCH) | \
	    rb-train --method corruption $(PR_NOISE) --noise $$noise; done; \
	  for warm in $(PR_WARM); do rb-arch $(PR_ARCH) | \
	    rb-train --method trades $(PR_FILTER) --filter chen-lee --warm-steps $$warm; done; \
	  $(PR_TABLE_8) } | \
	  $(call PR_EVALUATE,$(PR_EPS),$(PR_STEP),$(PR_GAMMA),$(PR_FIRST),$(PR_IMAGES)) | \
	  rb-measure bound --paper prbench $(PR_BOUND); $(PR_MORE) } $(call INTO,prbench)
	@$(call COMPARE,prbench) < $(call RECORDS,prbench)

# --- NAS-RobBench-201: tables 1, 4 to 7 ------------------------------------------------------------

NR_NONE := $(call at,0 1 2 3 4,,0 3)
NR_ARCH := $(call at,--sample 3 --seed 1 --cells 1 --channels 8,,--sample 1 --seed 1 --cells 1 --channels 4)
NR_ARCHS = for none in $(NR_NONE); do rb-arch --unique --where "none == $$none" $(NR_ARCH); done
NR_HOW := $(call at,--method pgd --eps 32 --step-size 8 --attack-steps 4 --epochs 5 --val 0 --lr 0.1,\
	--preset nasrobbench201 --method pgd --seed 0$(,)1$(,)2,\
	--method pgd --eps 32 --attack-steps 1 --epochs 1)
NR_TRAIN = rb-train $(NR_HOW) --jobs $(JOBS)
# Table 7: what differentiable searches derive, trained as the others. #1835, skip connections alone, is the
# cell of DARTS-V1 in NAS-Bench-201's own experiments; at full scale it is among all the others.
NR_SEARCH := $(call at,--cells 1 --channels 8,--dataset cifar10,--cells 1 --channels 4)
NR_STEPS := $(call at,--epochs 10 --steps 10,,--epochs 1 --steps 2)
NR_DERIVED = for search in $(call at,darts advrush,darts advrush,darts); do \
	rb-search $$search $(NR_SEARCH) $(NR_STEPS); done; \
	rb-search nasi $(NR_SEARCH) $(call at,--steps 20,,--steps 2)
NR_DARTS := $(call at,rb-arch --index 1835 --cells 1 --channels 8;,,)
NR_ON := $(call at,,--dataset cifar10,)
NR_EPS := $(call at,--eps 12$(,)32,--eps 3$(,)8,--eps 12$(,)32 --n 40)
NR_FAR := $(call at,--eps 64$(,)128$(,)255,--eps 16$(,)32$(,)64$(,)128$(,)255,--eps 64$(,)128$(,)255 --n 40 --steps 3)
NR_SQUARE := $(call at,--eps 12 --n 100 --queries 200,--eps 3,--eps 12 --n 40 --queries 5)
NR_C := $(call at,gaussian_noise$(,)brightness$(,)contrast$(,)jpeg_compression --n 200,all,contrast --n 40)
NR_CORRUPT := rb-corrupt $(NR_C) --severity $(call at,1$(,)5,1$(,)5,5)
# At full scale under the published corruptions, which ImageNet16-120 has none of.
NR_PUBLISHED = for classes in 10 100; do rb-arch --unique --dataset cifar$$classes | $(NR_TRAIN) | \
	$(NR_CORRUPT) --from '$(DATA)/CIFAR-'$$classes-C; done; \
	rb-arch --unique --dataset imagenet16-120 | $(NR_TRAIN); \
	{ $(NR_DERIVED); } | $(NR_TRAIN) $(NR_ON) | $(NR_CORRUPT) --from '$(DATA)/CIFAR-10-C'
NR_SAMPLED = { { $(NR_DARTS) $(NR_ARCHS); } | $(NR_TRAIN); { $(NR_DERIVED); } | $(NR_TRAIN); } | $(NR_CORRUPT)
# The kernels of figures 5 and 6 and the scores of table 7, on fresh weights.
NR_NTK := $(call at,--kernel twice --attack fgsm$(,)pgd --eps 12$(,)32 --batch-size 20,--preset nasrobbench201,\
	--kernel robust --eps 32 --batch-size 4)
NR_AA := $(call at,--eps 32 --n 50 --attacks apgd-ce$(,)apgd-t,--eps 8,--eps 32 --n 5 --attacks apgd-ce)
NR_WOT := $(call at,--batch-size 64,,--batch-size 8)

reproduce-nas-robbench-201: $(VENV)/run.stamp  ## NAS-RobBench-201's tables 1, 4 to 7 (SCALE=mini or full)
	@$(call COMPARE,nas-robbench-201) --need --data '$(DATA)'
	@$(PIPE) { $(call at,$(NR_SAMPLED),$(NR_PUBLISHED),$(NR_SAMPLED)); } | \
	  rb-attack fgsm $(NR_EPS) | \
	  rb-attack pgd $(NR_EPS) --iterate last | \
	  rb-attack pgd $(NR_FAR) --iterate last | \
	  rb-attack square $(NR_SQUARE) --schedule rescaled | \
	  rb-attack aa $(NR_AA) | \
	  rb-measure ntk $(NR_NTK) | rb-measure naswot $(NR_WOT) $(call INTO,nas-robbench-201)
	@$(call COMPARE,nas-robbench-201) < $(call RECORDS,nas-robbench-201)

# --- the robustness dataset of NAS-Bench-201 (Jung et al. 2023): table 1 --------------------------

# At mini those of NAS-RobBench-201, whose table 1 compares the two, some of 18 kernel parameters, of which
# figures 7, 28 and 29 are, and the network of figure 30 with neighbours.
NB_SMALL := --cells 1 --channels 8
# At full scale the published weights under the published corruptions, which ImageNet16-120 has none of.
NB_FROM := $(call at,,--weights '$(WEIGHTS)',)
NB_PUBLISHED = for classes in 10 100; do rb-arch --unique --dataset cifar$$classes | \
	rb-corrupt all --detail --severity 1-5 --from '$(DATA)/CIFAR-'$$classes-C $(NB_FROM); done; \
	rb-arch --unique --dataset imagenet16-120
NB_ARCHS = $(call at,$(NR_DARTS) $(NR_ARCHS); \
	rb-arch --unique --where 'live_kernel_params == 18' --sample 5 --seed 1 $(NB_SMALL); \
	rb-arch --index 13714 $(NB_SMALL); \
	rb-arch --unique --where 'distance(13714) == 1' --sample 3 --seed 2 $(NB_SMALL),\
	$(NB_PUBLISHED),\
	rb-arch --unique --sample 3 --seed 2 --cells 1 --channels 4)
# Figure 6: the Jacobian and the Hessian.
NB_MEASURE := $(call at,--batches 2 --batch-size 64,--preset jung2023,--batches 1 --batch-size 8 --probes 1)
# At full scale nothing is trained: the published weights are evaluated.
NB_TRAIN := $(call at,rb-train --method erm --epochs 6 --val 0 --jobs $(JOBS),cat,rb-train --method erm --epochs 1)
NB_EPS := $(call at,--eps 2$(,)4$(,)8$(,)16$(,)32 --n 200,--eps 0.1$(,)0.5$(,)1$(,)2$(,)3$(,)4$(,)8,\
	--eps 4$(,)8$(,)32 --n 40)
NB_FGSM := $(call at,$(NB_EPS),--eps 0.1$(,)0.5$(,)1$(,)2$(,)3$(,)4$(,)5$(,)6$(,)7$(,)8$(,)255,$(NB_EPS))
NB_PGD := --steps 40 --relative-step 0.0333333 --iterate last
NB_SHORT := $(call at,--steps 50,,--steps 3)
NB_QUERIES := $(call at,--queries 300,,--queries 5)
NB_C := $(call at,all --n 100 --severity 3$(,)4,,contrast$(,)brightness --n 40 --severity 3)
NB_CORRUPT := $(if $(NB_C),rb-corrupt $(NB_C) --detail,cat)

reproduce-nas-bench-201-robustness: $(VENV)/run.stamp  ## Jung et al.: table 1 (SCALE=mini or full)
	@$(call COMPARE,nas-bench-201-robustness) --need --data '$(DATA)' --weights '$(WEIGHTS)'
	@$(PIPE) { $(NB_ARCHS); } | $(NB_TRAIN) | \
	  rb-attack fgsm $(NB_FGSM) --detail $(NB_FROM) | \
	  rb-attack pgd $(NB_EPS) $(NB_PGD) --detail $(NB_FROM) | \
	  rb-attack apgd-ce $(NB_EPS) $(NB_SHORT) $(NB_FROM) | \
	  rb-attack square $(NB_EPS) $(NB_QUERIES) $(NB_FROM) | \
	  $(NB_CORRUPT) | \
	  rb-measure jacobian,hessian --split test --on both $(NB_MEASURE) $(NB_FROM) $(call INTO,nas-bench-201-robustness)
	@$(call COMPARE,nas-bench-201-robustness) < $(call RECORDS,nas-bench-201-robustness)

# --- the Weight-Curvature Index along adversarial training: its curves ----------------------------

# DATASET=imagefolder:PATH puts the small network on images of yours.
WCI_DATA = $(if $(DATASET),--dataset '$(DATASET)')
WCI_EPS = $(if $(DATASET),--eps 8 --step-size 2,--eps 32 --step-size 8)
WCI_ARCH = $(call at,rb-arch --index 13714 --cells 1 --channels 8 $(WCI_DATA),\
	{ for set in cifar10 cifar100; do rb-arch --arch preactresnet18 --dataset $$set; done; },\
	rb-arch --index 13714 --cells 1 --channels 2 $(WCI_DATA))
WCI_SMALL = --method pgd $(WCI_EPS) --attack-steps 7 --val 0 --lr 0.05 --precision fp32 --schedule piecewise
WCI_HOW = $(call at,$(WCI_SMALL) --epochs 24 --milestones 14$(,)20 --every 2 --track-n 500,\
	--preset rice2020 --every 5,\
	$(WCI_SMALL) --epochs 3 --milestones 2 --every 1 --track-n 20)
# Lemmas 1 and 2 and theorem 4 of the last weights.
WCI_BOUND = $(call at,$(firstword $(WCI_EPS)) $(word 2,$(WCI_EPS)) --batch-size 128,--preset rice2020,\
	$(firstword $(WCI_EPS)) $(word 2,$(WCI_EPS)) --batch-size 8 --probes 2)

reproduce-wci: $(VENV)/run.stamp  ## the Weight-Curvature Index beside robust gaps along trainings (SCALE=mini or full)
	@$(call COMPARE,wci) --need --data '$(DATA)'
	@$(PIPE) { \
	  for how in $(call at,none cutout mixup l2,none cutout mixup l2,l2); do $(WCI_ARCH) | \
	    rb-train $(WCI_HOW) --regularize $$how --track robust,wci; done; } | \
	  rb-measure bound --paper wci $(WCI_BOUND) $(call INTO,wci)
	@$(call COMPARE,wci) < $(call RECORDS,wci)

# --- the theory of NAS-RobBench-201: its bounds on its own networks, before training ---------------

TH_FCNN := $(call at,--depth 3 --sample 6,--dataset cifar10,--depth 2 --sample 1 --width 8)
TH_RESCNN := $(call at,--depth 3 --sample 3 --width 16,--dataset cifar10 --sample 24,--depth 2 --sample 1 --width 4)
TH_HOW := $(call at,--eps 2$(,)16 --batch-size 20,--eps 8,--eps 16 --batch-size 4 --attack-steps 1)

reproduce-theory: $(VENV)/run.stamp  ## NAS-RobBench-201's theorems 1 and 2 and corollary 1 (SCALE=mini or full)
	@$(call COMPARE,theory) --need --data '$(DATA)'
	@$(PIPE) { rb-arch --space fcnn $(TH_FCNN); rb-arch --space rescnn $(TH_RESCNN); } | \
	  rb-measure bound --paper robbench $(TH_HOW) $(call INTO,theory)
	@$(call COMPARE,theory) < $(call RECORDS,theory)

# --- searches on a table that rb-convert made -----------------------------------------------------

.PHONY: reproduce-search
reproduce-search: $(VENV)/run.stamp  ## searches on a published table, beside the papers' (TABLE=FILE of rb-convert)
	@test -n '$(TABLE)' || { echo "make: no table is named. Make one with rb-convert nasrobbench201 or" \
	  "jung2023, then: make reproduce-search TABLE=FILE" >&2; exit 2; }
	@$(ONE_THREAD) $(BIN)/python rbtools/papers/reproduce_search.py --table '$(TABLE)'

# --- every figure and table of a paper, from the records of its reproduction ----------------------
#
#   make figures-NAME SCALE=mini      runs the reproduction where it is not done, then draws
#
# $(REPRODUCED)/NAME/ gets figN.pdf and figN.png, tableN.md and tableN.tex, and index.html (bench/paper_items.py).

FIGURES := figures-nas-robbench-201 figures-robustness-dataset figures-prbench figures-wci
.PHONY: $(FIGURES)
DRAW = $(PIPE) python rbtools/papers/figures_of_papers.py $(1) --scale $(SCALE) --reproduced '$(REPRODUCED)'

# Table 1 and figure 8 show the robustness dataset too. At full scale it needs weights of its own, and these
# two say what makes it.
figures-nas-robbench-201: reproduce-nas-robbench-201 $(call at,reproduce-nas-bench-201-robustness,,)  ## every figure and table of NAS-RobBench-201 (SCALE=mini or full)
	@$(call DRAW,nas-robbench-201)

figures-robustness-dataset: reproduce-nas-bench-201-robustness  ## every figure and table of Jung et al. 2023
	@$(call DRAW,robustness-dataset)

figures-prbench: reproduce-prbench  ## every figure and table of PRBench
	@$(call DRAW,prbench)

figures-wci: reproduce-wci  ## every figure of the Weight-Curvature Index
	@$(call DRAW,wci)
