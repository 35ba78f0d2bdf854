#!/bin/sh
# Leaves out variables of the machine's shell that would harm the environment, and names them on stderr once a job.
#
# Apptainer reads this file. It holds the shell's variables back in __exported_env__ until it has read all such files, and then
# passes those that these files have not set; what they set to nothing stays out. After 99-base.sh it sets what `--env` and
# APPTAINERENV_NAME say. The entry point of the image reads this file, too: there each variable was passed on purpose, so only
# those are left out that name what is not there. No other program is called, and the few patterns spare time: Apptainer's own
# shell has no programs, and reads each pattern anew.

# Succeeds for a file of the image, not for one of a mounted folder such as your home. In an image, mounts were named on purpose.
_envbuilder_has() {
  case ${__exported_env__+sif}$1/ in
    sif*/../*) return 1 ;;
    sif/usr/* | sif/opt/env/* | sif/opt/envbuilder/* | sif/opt/python/* | sif/bin/* | sif/lib/* | sif/lib64/*) ;;
    sif*) case :$PATH: in *:"${1%/*}":*) ;; *) return 1 ;; esac ;;
  esac
  [ -e "$1" ]
}

# Succeeds if the first word of $1 is a program of the image.
_envbuilder_program() {
  local word folder IFS=' '
  for word in $1; do
    case $word in
      */*) if [ -x "$word" ] && _envbuilder_has "$word"; then return 0; else return 1; fi ;;
    esac
    IFS=:
    for folder in $PATH; do
      if [ -x "$folder/$word" ]; then return 0; fi
    done
    return 1
  done
  return 1
}

# Succeeds for a folder of the checkout around this folder; a name may lead there by links. The home is no project.
_envbuilder_of_project() {
  local folder=$1 project=$PWD
  until [ -z "$project" ] || [ -e "$project/.git" ]; do project=${project%/*}; done
  project=${project:-$PWD}
  until [ -z "$folder" ] || [ "$folder" -ef "$project" ]; do folder=${folder%/*}; done
  [ -n "$folder" ] && ! [ "$project" -ef "${HOME:-/}" ]
}

# Succeeds for a file of the image or, in a SIF, of the project.
_envbuilder_is_meant() {
  _envbuilder_has "$1" || { [ -n "${__exported_env__+sif}" ] && _envbuilder_of_project "$1"; }
}

# Succeeds if the flags in $1 name nothing but folders of the image or the project, and compilers of the image.
_envbuilder_flags() {
  local word before='' IFS=' ,='
  for word in $1; do
    case $before in
      -ccbin | --compiler-bindir) _envbuilder_program "$word" || return 1 ;;
      *)
        case $word in
          /* | -[ILB]/* | -isystem/*) _envbuilder_is_meant "/${word#*/}" || return 1 ;;
        esac
        ;;
    esac
    before=$word
  done
}

# Sets `kept` to the entries of $1 without foreign folders: those that are there, but not of the image or of the project.
_envbuilder_list() {
  local entry IFS=:
  kept=''
  for entry in $1; do
    if [ -e "$entry" ]; then
      case $entry/ in
        */site-packages/* | */dist-packages/*) continue ;;
        /*) _envbuilder_is_meant "$entry" || continue ;;
      esac
    fi
    kept=$kept:$entry
  done
  kept=${kept#:}
}

# Leaves out the variable $1 with the value $2, if a rule says so, and adds its name to `names`.
_envbuilder_consider() {
  local name=$1 value=$2 kept=''
  case ' NAMES ' in
    *" $name "*) ;;
    *) case $name in PATTERNS) ;; *) return 0 ;; esac ;;
  esac
  case $name in
    # RULES
  esac
  case $1 in
    program) _envbuilder_program "$value" && return ;;
    flags) _envbuilder_flags "$value" && return ;;
    path) _envbuilder_has "$value" && return ;;
    there) [ -e "$value" ] && return ;;
    list)
      _envbuilder_list "$value"
      [ "$kept" != "$value" ] || return 0
      ;;
  esac
  if [ -z "${__exported_env__+sif}" ]; then
    unset "$name"
  else
    if test -v "$name"; then return 0; fi # the image's own value wins
    export "$name=$kept"
  fi
  [ "$2" = quiet ] || names=$names${names:+, }$name
}

_envbuilder_shell() {
  local entry name names='' say=1 why IFS='
'
  if [ -n "${__exported_env__+sif}" ]; then
    case $IFS$__exported_env__$IFS in *"${IFS}ENVBUILDER_SHELL=off$IFS"*) return 0 ;; esac
    why='`--env NAME=VALUE` or APPTAINERENV_NAME passes a variable'
    for entry in $__exported_env__; do
      name=${entry%%=*}
      case $name in
        ENVBUILDER_SHELL | RANK | *_RANK | SLURM_PROCID)
          case $entry in *=0 | *=) ;; *) say='' ;; esac
          ;;
        *) _envbuilder_consider "$name" "${entry#*=}" ;;
      esac
    done
    export PYTHONNOUSERSITE=1
  elif [ "${ENVBUILDER_SHELL-}" != off ]; then
    why='they name what is not in this image'
    [ -z "${ENVBUILDER_SHELL-}" ] || say=''
    for name in UNFIT; do
      eval "entry=\${$name-}"
      [ -z "$entry" ] || _envbuilder_consider "$name" "$entry"
    done
  fi
  if [ -n "$names" ] && [ -n "$say" ]; then
    printf 'envbuilder: kept out of the environment: %s (%s; ENVBUILDER_SHELL=quiet hides this line)\n' "$names" "$why" >&2
  fi
}

set -f
_envbuilder_shell
set +f
