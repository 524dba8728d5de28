#!/usr/bin/env bash
# The comparisons of docs/results.md again, on one NVIDIA GPU:
#
#     bash benchmarks/reproduce.sh OUT words            depth per word: IMDB, TREC (models/minilm: recipes/depth-adaptive)
#     bash benchmarks/reproduce.sh OUT decoding         a model that nobody trained beside Hugging Face; kernels and tiles
#     bash benchmarks/reproduce.sh OUT choosing         a tied model; its speed, drafts, selector, budgets
#     bash benchmarks/reproduce.sh OUT multiscale latent
#
# Run where data/ is. Trainings go side by side; what is timed is alone. Finished stages are skipped, so the same command
# goes on after a stop; what fails is said in the end, and the rest is done. What decides most comes first, and figures
# are written as they are found. Logs: OUT/*.txt, with OUT/times.txt to tell what took how long.
# JOBS (6): trainings at a time. TINY: further arguments of every chain, such as "--set training.steps=2". LIMIT (none):
# seconds that a step may take before it is stopped. SKIP (none): names of steps to leave out, such as "decoding compiled".
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=$1 && shift
jobs=${JOBS:-6}
read -ra tiny <<< "${TINY:-}"
mkdir -p "$out" && : > "$out/failed"
export PYTHONUNBUFFERED=1

# a name for the log, then a command
step() {
    local began=$SECONDS limited=()
    [[ " ${SKIP:-} " != *" $1 "* ]] || return 0
    [ -z "${LIMIT:-}" ] || limited=(timeout --foreground "$LIMIT")
    echo "$(date +%T) $1"
    "${limited[@]}" "${@:2}" > "$out/$1.txt" 2>&1 || echo "$1" >> "$out/failed"
    echo "$1 $((SECONDS - began)) s" >> "$out/times.txt"
}
anydepth() { step "$1" python3 -m anydepth "${@:2}"; }
chain() { anydepth "chain-$1-$2" chain "$here/recipes/$1/$2.toml" --out "$out/$3" --jobs "$jobs" "${tiny[@]}"; }
benchmark() { step "$1" python3 "$here/benchmarks/$2.py" "${@:3}"; }
# processes share the GPU with it, and take turns without it
side_by_side() { nvidia-cuda-mps-control -d > /dev/null 2>&1; }
alone() { wait; echo quit | nvidia-cuda-mps-control > /dev/null 2>&1; }

words() {
    side_by_side
    chain depth-adaptive imdb-table imdb
    chain depth-adaptive imdb-rates rates
    chain depth-adaptive trec-table trec
    local depth4=$out/depth_4
    [ -e "$depth4" ] ||
        anydepth export-depth-4 export "$out/rates/exits_6_after_deepest" --to anydepth --depth 4 --out "$depth4"
    anydepth scores-depth-4 evaluate "$depth4"
    anydepth depths-one-at-a-time depths "$out/imdb/mlm" --method reconstruction --every 16 --compare \
        --texts 2000 --out "$out/depths.jsonl"
    alone
    benchmark perword perword --device cuda --batches 1 8 32 128 --json "$out/perword.json" --picture "$out/perword.svg"
    local runs=(plain plain_6 constant_3 constant_4 constant_6 halting_correctness_likeliest_0_01
        halting_likelihood_expected_0_01 halting_likelihood_expected_0_03 halting_likelihood_expected_0_1
        information_refresh information_keep joint_refresh joint_keep even six information_6_width information_6_words
        joint_6 reconstruction_refresh_0_1 reconstruction_keep_0_1 reconstruction_keep_0_2 exits_6_1_0 exits_6_3_0 exits)
    benchmark imdb-speed classify_speed "${runs[@]/#/$out/imdb/}" --texts 2000 --json "$out/imdb-speed.json"
    runs=(plain plain_6 constant information information_6 reconstruction)
    runs=("${runs[@]/%/_0_0001}" exits_6_{0_0001,after_labels,after_deepest} exit_once_{3,4}_{labels,deepest})
    benchmark rates-speed classify_speed "${runs[@]/#/$out/rates/}" "$depth4" --exits 0.9 0.95 --texts 2000 \
        --json "$out/rates-speed.json"
    benchmark trec-speed classify_speed "$out"/trec/{plain,plain_6,information_joint_keep,exits} --json "$out/trec-speed.json"
    for corpus in trec imdb; do
        benchmark parity-$corpus finetune_parity "$here/recipes/depth-adaptive/$corpus.toml" --seeds 1 \
            --json "$out/parity-$corpus.json"
    done
}

decoding() {
    local test=data/europarl-de-en/test.de.gz words=$out/words rows
    local random=(--random --tokenizer "$words/tokenizer.json" --source "$test" --sentences 256)
    benchmark profile decoding_profile --shapes 1x1,32x1,256x5
    [ -e "$words" ] ||
        anydepth words train "$here/recipes/baselines/europarl-de-en.toml" --out "$words" \
            --set tokenizer.vocabulary=16000 --set training.steps=1
    benchmark random decoding_speed "${random[@]}" --sections rival,step,depths --out "$out/random.json"
    benchmark random-compiled decoding_speed "${random[@]}" --sections compiled --shapes 1x1,32x1 --patience 90 \
        --out "$out/random-compiled.json"
    for rows in 1 5 32; do  # to compile side by side
        benchmark "tiles-$rows" tiles --rows $rows &
    done
    wait
    benchmark tiles tiles --rows 1 5 32
}

choosing() {
    local tied=$out/choosing/tied test=data/europarl-de-en/test other=data/europarl-multi/train.en-de
    local dev=data/europarl-de-en/dev.de.gz sizes="1 4 16 64"
    local depths=6-6,6-4,6-3,6-2,6-1,4-4,4-2,2-2,1-1
    chain tied-multi choosing choosing
    benchmark decoding decoding_speed "$tied" --source "$test.de.gz" --sections rival,step,depths \
        --sentences 256 --out "$out/decoding.json"
    # drafts at every batch size, for one depth; below, times of several depths, for single sentences
    anydepth calibrate-drafts calibrate "$tied" --beam 1 --depths 6-6 --batches "${sizes// /,}" --quick --source "$dev"
    benchmark speculation speculation speed "$tied" --source "$test.de.gz" --batches $sizes --out "$out/speculation.json"
    side_by_side
    for batch in 16 4 1; do  # what comes next should not wait for them for long
        LIMIT=${LIMIT:-420} benchmark exact-$batch speculation exactness "$tied" --source "$test.de.gz" --batches $batch \
            --sentences $((batch == 16 ? 2000 : 150 * batch)) --out "$out/exact-$batch.json" &
    done
    zcat "$dev" | head -1000 > "$out/dev.de"
    anydepth confidence confidence "$tied" --source "$out/dev.de" &
    anydepth selector selector "$tied" --beam 1 --batch 512 --jobs "$jobs" --source "$other.de.gz" \
        --reference "$other.en.gz" --sentences 50000 --search --search-sentences 6000 --fine-tune
    alone
    anydepth selector-judged selector "$tied" --beam 1 --evaluate --sentences 500
    cp "$tied/selector/judgement.json" "$out/judgement.json" || echo judgement >> "$out/failed"
    anydepth calibrate calibrate "$tied" --beam 1 --depths $depths --batches 1 --drafts-at 6-6,6-4,4-4 --source "$dev"
    benchmark budget budget "$tied" --sentences 3000 --out "$out/budget.json"
    benchmark budget-drafts budget "$tied" --speculate --sentences 1500 --out "$out/budget-drafts.json"
    benchmark compiled decoding_speed "$tied" --source "$test.de.gz" --sections compiled,precision --patience 60 \
        --sentences 256 --out "$out/compiled.json"
}

multiscale() {
    side_by_side
    chain multiscale decisive multiscale
    chain multiscale table6 summaries
    alone
    benchmark multiscale-speed multiscale_speed --out "$out/multiscale-speed.json"
}

latent() {
    side_by_side
    chain latent-depth decisive latent
    alone
    benchmark latent-speed latent_speed --out "$out/latent-speed.json"
}

# all of it is read before anything runs, so that the file may change meanwhile
main() {
    local what
    for what in "$@"; do
        case $what in
        words | decoding | choosing | multiscale | latent) $what ;;
        *) echo "$what: not one of words, decoding, choosing, multiscale, latent" >&2 && exit 2 ;;
        esac
    done
    [ ! -s "$out/failed" ] || { echo "failed, see $out/*.txt:" $(cat "$out/failed") >&2; exit 1; }
    exit 0
}
main "$@"
