#!/bin/sh
# The demo: three architectures, each trained two ways, on real handwritten digits; `make demo`.
#
# Six networks are trained, attacked, sampled with noise, scored and ranked while they flow through the
# pipe. Finished work is kept in rb-store/: run the demo again to resume it.
set -eu
(set -o pipefail) 2>/dev/null && set -o pipefail

printf '%s\n' 'rb-arch | rb-train --method erm,trades | rb-attack pgd | rb-pr | rb-score | rb-rank' >&2

rb-arch --sample 3 --seed 3 --cells 1 --where 'none <= 1 and kernel_params >= 18' |
    rb-train --method erm,trades --eps 32 --attack-steps 4 --step-size 16 |
    rb-attack pgd --eps 32 |
    rb-pr --gamma 0.3 --rho 0.05 --samples 50 |
    rb-score --metric acc,pgd20.32,pr.uniform.0.3,probacc.uniform.0.3.0.05 |
    rb-rank --format table
