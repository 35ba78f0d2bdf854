# One recipe for each task of the array. What becomes of it stands in a file of its own, for several nodes that write into one
# lose lines on a shared file system.
recipe=${recipes[SLURM_ARRAY_TASK_ID]}
name=${recipe##*/}
name=${name%.*}
job=$SLURM_ARRAY_JOB_ID
ends=$logs/$job
mkdir -p "$ends"

note_the_end() {
  local status=$?
  printf '%s\t%s\t%s\n' "$status" "$(uname -n)" "$logs/build-${job}_$SLURM_ARRAY_TASK_ID.log" >"$ends/$name.ended"
  say "$name ended with exit code $status"
}
trap note_the_end EXIT
trap 'exit 143' TERM

prepare
{ [ -d "$cache" ] && [ -w "$cache" ]; } || fail "cannot write to the cache $cache: is it on a file system that this node has?"
export ENVBUILDER_CACHE=$cache
say "task $SLURM_ARRAY_TASK_ID of job $job: build $recipe"
"${build[@]}" "$recipe"
