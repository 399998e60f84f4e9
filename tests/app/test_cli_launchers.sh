#!/usr/bin/env bash
# Ranks that a launcher has started: processes with the variables of mpirun, srun, torchrun and others
# as these document them, started by hand; and by the real mpirun where it is installed. The tokens of
# --tensor-parallel, contradictions, and ranks that are killed; and, up to where they would compute,
# ranks on GPUs of a fake driver. Usage: PROGRAM DEMO_FOLDER FAKE_DRIVER_FOLDER
. "$(dirname "$0")/cli.sh" "$@"
. "$(dirname "$0")/server.sh"
driver=$3
for name in $(env | sed -n 's/^\(OMPI_[A-Z_]*\|PMIX\?_[A-Z_]*\|MPI_LOCAL[A-Z]*\|SLURM_[A-Z_]*\|RANK\|WORLD_SIZE\|LOCAL_RANK\|LOCAL_WORLD_SIZE\|MASTER_[A-Z]*\)=.*/\1/p'); do
  unset "$name"
done
launchers="torchrun openmpi pmi slurm pmix srun-pmix"
starts=0

# What a launcher tells a process, one variable a word. $starts: of which start.
variables() {  # launcher, rank, size
  case $1 in
  torchrun) echo "RANK=$2 WORLD_SIZE=$3 LOCAL_RANK=$2 LOCAL_WORLD_SIZE=$3 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000 + starts))" ;;
  openmpi) echo "OMPI_COMM_WORLD_RANK=$2 OMPI_COMM_WORLD_SIZE=$3 OMPI_COMM_WORLD_LOCAL_RANK=$2 OMPI_COMM_WORLD_LOCAL_SIZE=$3 PMIX_RANK=$2 PMIX_NAMESPACE=prterun-$$-$starts@1" ;;
  pmi) echo "PMI_RANK=$2 PMI_SIZE=$3 MPI_LOCALRANKID=$2 MPI_LOCALNRANKS=$3 PMI_FD=7" ;;
  slurm) echo "SLURM_PROCID=$2 SLURM_NTASKS=$3 SLURM_STEP_NUM_TASKS=$3 SLURM_STEP_NUM_NODES=1 SLURM_LOCALID=$2 SLURM_JOB_ID=$$ SLURM_STEP_ID=$starts" ;;
  pmix) echo "PMIX_RANK=$2 PMIX_NAMESPACE=prterun-$$-$starts@1" ;;
  srun-pmix) echo "$(variables slurm "$2" "$3") $(variables pmix "$2" "$3")" ;;
  esac
}

# Starts all ranks, the last one first; $pids[rank] are their numbers, and $work/out.RANK and
# err.RANK have what they write. Rank 0 reads $input, the others nothing. With $numbered a variable
# of that name has the rank.
input=/dev/null
numbered=
launch() {  # launcher, size, arguments
  local launcher=$1 size=$2 rank from
  shift 2
  starts=$((starts + 1))
  pids=()
  for rank in $(seq $((size - 1)) -1 0); do
    from=/dev/null
    [ "$rank" -eq 0 ] && from=$input
    # shellcheck disable=SC2046  # several words
    env $(variables "$launcher" "$rank" "$size") ${numbered:+"$numbered=$rank"} "$program" "$@" \
      >"$work/out.$rank" 2>"$work/err.$rank" <"$from" &
    pids[rank]=$!
  done
}

check_ends() {  # what, size
  local rank
  for rank in $(seq 0 $(($2 - 1))); do
    wait "${pids[rank]}"
    check_equal "$1: status of rank $rank; $(show "$work/err.$rank")" 0 $?
    if [ "$rank" -gt 0 ]; then
      check_empty "$1: rank $rank" "$work/out.$rank"
      check_empty "$1: rank $rank" "$work/err.$rank"
    fi
  done
}

test_tokens() {
  local launcher n expected
  for n in 2 4; do
    run run "$demo" -t 1 -n 30 -p "What is 137 + 245?" -p "Count." --tp $n
    expected=$(cat "$out")
    for launcher in $launchers; do
      launch $launcher $n run "$demo" -t 1 -n 30 -p "What is 137 + 245?" -p "Count." --tp $n
      check_ends "$launcher, $n ranks" $n
      check_equal "$launcher, $n ranks" "$expected" "$(cat "$work/out.0")"
    done
  done
  # Without --tp, where the launcher tells how many there are; more threads than processors.
  launch torchrun 4 run "$demo" -n 30 -p "What is 137 + 245?" -p "Count."
  check_ends "torchrun without --tp" 4
  check_equal "torchrun without --tp" "$expected" "$(cat "$work/out.0")"
  # Each rank on a processor of its own, as launchers bind them.
  if [ "$(nproc)" -gt 1 ]; then
    starts=$((starts + 1))
    for rank in 0 1; do
      # shellcheck disable=SC2046
      env $(variables slurm $rank 2) taskset -c $rank "$program" run "$demo" -n 30 \
        -p "What is 137 + 245?" -p "Count." >"$work/out.$rank" 2>"$work/err.$rank" </dev/null &
      pids[rank]=$!
    done
    check_ends "each on its processor" 2
    check_equal "each on its processor" "$expected" "$(cat "$work/out.0")"
  fi
}

# What rank 0 is asked, here on standard input, is nothing that the others know.
test_others() {
  local expected
  printf "What is 137 + 245?" >"$work/prompt"
  run run "$demo" -t 1 -n 30 -p "What is 137 + 245?"
  expected=$(cat "$out")
  input=$work/prompt
  launch slurm 2 run "$demo" -t 1 -n 30
  check_ends "standard input" 2
  check_equal "standard input" "$expected" "$(cat "$work/out.0")"
  input=/dev/null
  launch openmpi 2 score "$demo" -t 1 --json --text "What is 137 + 245?"
  check_ends "score" 2
  check_has "score" "$work/out.0" '"perplexity"'
  launch pmi 2 bench "$demo" -t 1 -p 8 -g 8 --runs 1 --launch jit --schedulers 1
  check_ends "bench, jit" 2
  launch slurm 2 run "$demo" --load-format dummy -t 1 -n 4 -p a --memory-share 0.2
  check_ends "bench, dummy weights" 2
  # A launcher that has started one process is none, and neither is the shell of a batch job.
  SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_JOB_ID=$$ \
    run run "$demo" -t 1 -n 30 -p "What is 137 + 245?" --tp 2
  check_equal "batch script" "$expected" "$(cat "$out")"
  OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 run run "$demo" -t 1 -n 30 -p "What is 137 + 245?" --tp 2
  check_equal "mpirun -n 1" "$expected" "$(cat "$out")"
}

refused() {  # what, text, variables, arguments
  local what=$1 text=$2 given=$3
  shift 3
  # shellcheck disable=SC2086  # several words
  env $given timeout 20 "$program" run "$demo" -p a "$@" >"$out" 2>"$err" </dev/null
  status=$?
  check_status "$what" 1
  check_has "$what" "$err" "$text"
}

test_refusals() {
  refused "--tp" "--tensor-parallel: expected 2, as many processes as torchrun has started, found 4" \
    "$(variables torchrun 0 2)" --tp 4
  refused "rank of size" "Open MPI: expected OMPI_COMM_WORLD_RANK below 2 (OMPI_COMM_WORLD_SIZE), found 2" \
    "$(variables openmpi 2 2)"
  refused "rank of --tp" "PMIx: expected PMIX_RANK below 2 (--tensor-parallel), found 3" \
    "$(variables pmix 3 4)" --tp 2
  refused "no size" "PMIx does not tell how many processes it has started" "$(variables pmix 0 2)"
  refused "two launchers" \
    "two launchers contradict each other: torchrun says rank 0 of 2, Slurm rank 1 of 4" \
    "$(variables torchrun 0 2) $(variables slurm 1 4)"
  refused "no number" 'PMI_RANK of PMI: expected a number, found "x1"' "$(variables pmi x1 2)"
  refused "9 ranks" "expected at most 8 ranks, found 9 (Slurm)" "$(variables slurm 0 9)"
  refused "hosts, by a local size" "expected all processes on one host, found several hosts (torchrun" \
    "$(variables torchrun 0 4) LOCAL_WORLD_SIZE=2"
  refused "hosts, by a local rank" "(Open MPI: rank 2 of 4 is rank 0 of 4 there)" \
    "$(variables openmpi 2 4) OMPI_COMM_WORLD_LOCAL_RANK=0"
  refused "hosts, by a count" "found several hosts (Slurm" "$(variables slurm 0 4) SLURM_STEP_NUM_NODES=2"
  run quantize "$demo" --to int8 -o "$work/int8"
  starts=$((starts + 1))
  # shellcheck disable=SC2046
  env $(variables slurm 1 2) "$program" run "$work/int8" -t 1 -p a >"$work/out.1" 2>"$work/err.1" &
  pids[1]=$!
  refused "another model" "rank 1 of 2" "$(variables slurm 0 2)" -t 1
  wait "${pids[1]}"
  check_equal "another model: status of rank 1" 1 $?
  check_has "another model" "$work/err.1" "as rank 1 of 2: expected rank 0's model, found another"
}

# Two or more ranks on GPUs end with these texts, of rank 0 and of another one ("": nothing).
refused_on_gpus() {  # what, size, text, rank, its text, arguments
  local what=$1 size=$2 text=$3 other=$4 other_text=$5 rank
  shift 5
  LD_LIBRARY_PATH=$driver launch torchrun "$size" run "$demo" -p a --device cuda "$@"
  for rank in $(seq 0 $((size - 1))); do
    wait "${pids[rank]}"
    status=$?
    # Once ranks are made, rank 0 ends those that have not come to the same refusal yet.
    [ "$rank" -eq 0 ] || [ "$status" -ne 137 ] || status=1
    check_equal "$what: status of rank $rank" 1 "$status"
  done
  check_has "$what" "$work/err.0" "$text"
  [ -z "$other_text" ] || check_has "$what" "$work/err.$other" "$other_text"
}

test_gpus() {
  FAKE_CUDA_DEVICES=1 refused_on_gpus "one GPU" 2 \
    "expected a GPU for each of 2 ranks, found ranks 0 and 1 on the same (Fake GPU)" 0 ""
  FAKE_CUDA_DEVICES=2 refused_on_gpus "two GPUs for four" 4 "has ended, or said nothing, before all began" \
    3 "as rank 3 of 4: GPU 3 was asked for, the driver finds 2"
  FAKE_CUDA_DEVICES=2 refused_on_gpus "a later GPU" 2 "has ended, or said nothing, before all began" \
    1 "as rank 1 of 2: GPU 2 was asked for, the driver finds 2" --device cuda:1
  # All numbers are well, so what is refused next is what a GPU has not.
  FAKE_CUDA_DEVICES=2 refused_on_gpus "two GPUs" 2 "GiB are free on the GPU" 0 ""
  numbered=FAKE_CUDA_BUS
  FAKE_CUDA_DEVICES=1 refused_on_gpus "a GPU shown to each" 2 "GiB are free on the GPU" 0 ""
  numbered=
  cp -r "$demo" "$work/other"
  sed -i 's/\("rms_norm_eps": *\)[^,]*/\10.25/' "$work/other/config.json"
  starts=$((starts + 1))
  export FAKE_CUDA_DEVICES=2
  # shellcheck disable=SC2046
  LD_LIBRARY_PATH=$driver env $(variables slurm 1 2) "$program" run "$work/other" -p a --device cuda \
    >"$work/out.1" 2>"$work/err.1" &
  pids[1]=$!
  LD_LIBRARY_PATH=$driver refused "another model on a GPU" \
    "expected all ranks to have the same model, found others" "$(variables slurm 0 2)" --device cuda
  wait "${pids[1]}"
  status=$?
  [ "$status" -ne 137 ] || status=1  # rank 0 was first
  check_equal "another model on a GPU: status of rank 1" 1 "$status"
  unset FAKE_CUDA_DEVICES
}

milliseconds() {
  echo $(($(date +%s%N) / 1000000))
}

is_gone() {  # process
  [ ! -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null
}

# All are gone within 2 s of $began.
check_gone() {  # what
  local turn rank left=yes
  for turn in $(seq 80); do
    left=
    for rank in "${!pids[@]}"; do
      is_gone "${pids[rank]}" || left="$left $rank"
    done
    [ -z "$left" ] && break
    sleep 0.02
  done
  check_equal "$1: ranks that run on" "" "$left"
  check_number "$1: ms" "x <= 2000" $(($(milliseconds) - began))
  check_equal "$1: what is left in /dev/shm" "$shm" "$(ls /dev/shm 2>/dev/null)"
}

# A socket exists before there is a rank 0 to reach; state 03 of /proc/net/unix says that it is
# connected.
has_reached_first() {  # process
  local inode
  for inode in $(ls -l "/proc/$1/fd" 2>/dev/null | sed -n 's/.*socket:\[\([0-9]*\)\].*/\1/p'); do
    awk -v inode="$inode" '$7 == inode && $6 == "03" { found = 1 } END { exit !found }' \
      /proc/net/unix && return
  done
  return 1
}

# Until the others have reached rank 0: before, only a launcher could tell them that it has ended.
await_meeting() {  # size
  local rank turn
  for rank in $(seq $(($1 - 1))); do
    for turn in $(seq 1000); do
      has_reached_first "${pids[rank]}" && break
      sleep 0.02
    done
  done
}

# Whichever rank is killed, or stopped, the others end.
test_faults() {
  local launcher rank n=4
  for rank in 0 1 2 3; do
    for launcher in torchrun openmpi slurm; do
      launch $launcher $n bench "$demo" -t 1 --mode mega -p 16 -g 400 --runs 1000
      await_meeting $n
      sleep 0.$((RANDOM % 10))$((RANDOM % 10))
      began=$(milliseconds)
      kill -KILL "${pids[rank]}"
      check_gone "$launcher: rank $rank killed"
      if [ $rank -gt 0 ]; then
        wait "${pids[0]}"
        check_equal "$launcher: rank $rank killed: status of rank 0" 1 $?
        grep -q "rank $rank of $n" "$work/err.0" || grep -q "before all began" "$work/err.0" ||
          fail "$launcher: rank $rank killed" "rank $rank of $n" "$(show "$work/err.0")"
      fi
    done
  done
  launch torchrun 2 bench "$demo" -t 1 --mode mega -p 16 -g 400 --runs 1000
  sleep 1.5
  began=$(milliseconds)
  kill -STOP "${pids[1]}"
  check_gone "stopped"
  check_has "stopped" "$work/err.0" "rank 1 of 2 gave no sign of life for 1 s"
}

# A server of ranks that were started: rank 0 listens, and its end is all ends'.
test_serve() {
  local expected
  start -t 1 --served-model-name m --tp 2
  ask POST /v1/completions '{"prompt": "What is 137 + 245?", "max_tokens": 20, "temperature": 0}'
  expected=$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' "$out")
  stop TERM
  launch torchrun 2 serve "$demo" --port 0 -t 1 --served-model-name m --tp 2
  for _ in $(seq 200); do
    grep -q "serving m at" "$work/err.0" && break
    sleep 0.05
  done
  address=$(sed -n 's/.* at \(http[^ ]*\)$/\1/p' "$work/err.0")
  ask POST /v1/completions '{"prompt": "What is 137 + 245?", "max_tokens": 20, "temperature": 0}'
  check_equal "serve: answer" "$expected" "$(sed -n 's/.*"text":"\([^"]*\)".*/\1/p' "$out")"
  kill -TERM "${pids[@]}"
  check_ends "serve" 2
}

# The real one, where it is.
test_mpirun() {
  local expected
  if ! command -v mpirun >/dev/null; then
    echo "no mpirun: left out"
    return
  fi
  run run "$demo" -t 1 -n 30 -p "What is 137 + 245?" --tp 2
  expected=$(cat "$out")
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun -n 2 \
    "$program" run "$demo" -t 1 -n 30 -p "What is 137 + 245?" >"$out" 2>"$err" </dev/null
  status=$?
  check_status "mpirun" 0
  check_equal "mpirun" "$expected" "$(cat "$out")"
}

shm=$(ls /dev/shm 2>/dev/null)
test_tokens
test_others
test_refusals
test_gpus
test_faults 2>/dev/null
test_serve
test_mpirun
finish
