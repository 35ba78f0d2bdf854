# Each task builds one recipe and writes its result into its own file: on a shared file system, nodes that write into
# the same file lose lines.
recipe=${recipes[SLURM_ARRAY_TASK_ID]}
name=${recipe##*/}
name=${name%.*}
job=$SLURM_ARRAY_JOB_ID
ends=$logs/$job
own_folder "$ends" 755 || fail "the folder of results $ends belongs to another user or is a link"

record_result() {
  local status=$?
  printf '%s\t%s\t%s\n' "$status" "$(uname -n)" "$logs/build-${job}_$SLURM_ARRAY_TASK_ID.log" >"$ends/$name.ended"
  say "$name ended with exit code $status"
}
trap record_result EXIT
trap 'exit 143' TERM

prepare
{ [ -d "$cache" ] && [ -w "$cache" ]; } || fail "cannot write to the cache $cache: is it on a file system that this node has?"
export ENVBUILDER_CACHE=$cache
say "task $SLURM_ARRAY_TASK_ID of job $job: build $recipe"
"${build[@]}" "$recipe"
