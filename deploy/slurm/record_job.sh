#!/bin/sh
# Prolog and Epilog of Slurm: records each job on its nodes into a file that belongs to the job's user. docs/slurm.md
#
#   slurm.conf:  PrologFlags=Alloc  Prolog=/usr/share/ingero/slurm/record_job.sh  Epilog=/usr/share/ingero/slurm/record_job.sh
#
# /etc/ingero/slurm, which is a shell's, may set:
#   INGERO            the program, if it is not on the PATH below
#   INGERO_JOBS       folder of the recordings that every user can enter; otherwise /var/lib/ingero-jobs
#   INGERO_OPTIONS    further options of `ingero trace`
#   INGERO_GPUS_ONLY  1: only jobs that were given GPUs
#   INGERO_WAIT_S     so long a job waits until it is recorded; otherwise 0: its first seconds are not
#
# Slurm takes a node out of service whose prolog fails: whatever goes wrong is said and the job runs, unrecorded.
trap 'exit 0' EXIT
umask 077
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME="${HOME:-/root}"
settings=${INGERO_SLURM_SETTINGS:-/etc/ingero/slurm}
# shellcheck source=/dev/null
[ ! -r "$settings" ] || . "$settings"
set -u

ingero=${INGERO:-ingero} folder=${INGERO_JOBS:-/var/lib/ingero-jobs} state=${INGERO_JOBS_STATE:-/run/ingero-jobs}
job=${SLURM_JOB_ID:-} user=${SLURM_JOB_UID:-}
longest_s=30 # that a script waits for the one of another job, and for the end of the agent

say() {
	echo "ingero: job $job: $*" >&2
	! command -v logger >/dev/null || logger -t ingero-slurm -- "job $job: $*" || true
}

# Who records now: sets pid, owner (a user id) and first, the job for which it began.
runs() {
	pid='' owner='' first=''
	[ -r "$state/agent" ] && read -r pid owner first <"$state/agent" &&
		tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$folder/job-$first.db"
}

# For the user, whose it stays: they may read it from the first second on.
make_file() {
	[ -e "$folder/job-$job.db" ] || install -m 600 -o "$user" /dev/null "$folder/job-$job.db"
}

# Answers whether the job is recorded.
begin() {
	[ -z "${INGERO_GPUS_ONLY:-}" ] || [ -n "${SLURM_JOB_GPUS:-}" ] || return
	if runs; then # one agent to a node; another user's processes are not for this one's file
		[ "$owner" = "$user" ] || { say "not recorded: job $first of user $owner is, on the same node" && return 1; }
		[ "$first" = "$job" ] || ln -sfn "job-$first.db" "$folder/job-$job.db"
	else
		rm -rf "$state/jobs"
		mkdir -p "$state/jobs" && mkdir -p -m 755 "$folder" && make_file ||
			{ say "cannot be recorded: there is no $folder/job-$job.db" && return 1; }
		# shellcheck disable=SC2086 # several words
		setsid "$ingero" trace --db "$folder/job-$job.db" --user "$user" ${INGERO_OPTIONS:-} \
			</dev/null >/dev/null 2>>"$folder/job-$job.log" 9>&- &
		echo "$! $user $job" >"$state/agent"
		tries=20 # until it is the agent, by which the next script knows it
		while [ $tries -gt 0 ] && ! runs && kill -0 $! 2>/dev/null; do
			sleep 0.05
			tries=$((tries - 1))
		done
	fi
	: >"$state/jobs/$job"
}

wait_until_it_records() {
	tries=$((2 * ${INGERO_WAIT_S:-0}))
	while [ $tries -gt 0 ] && runs && ! "$ingero" check --recording --db "$folder/job-$first.db" >/dev/null 2>&1; do
		sleep 0.5
		tries=$((tries - 1))
	done
}

end() {
	[ -e "$state/jobs/$job" ] || return 0
	rm -f "$state/jobs/$job"
	[ -z "$(ls "$state/jobs")" ] || return 0 # the last job of several ends it
	if runs; then
		kill -TERM "$pid"
		tries=$((10 * longest_s))
		while [ $tries -gt 0 ] && runs; do
			sleep 0.1
			tries=$((tries - 1))
		done
		[ $tries -gt 0 ] || say "the agent, process $pid, is still ending its recording"
	fi
	rm -f "$state/agent"
}

case "$job:$user" in
*[!0-9:]* | :* | *:) say "this is for Slurm, which sets SLURM_JOB_ID and SLURM_JOB_UID" && exit 0 ;;
esac
mkdir -p "$state" && exec 9>"$state/lock" && flock -w $longest_s 9 || { say "cannot be recorded" && exit 0; }
case ${SLURM_SCRIPT_CONTEXT:-} in
prolog_slurmd) begin && flock -u 9 && wait_until_it_records ;;
epilog_slurmd) end ;;
*) say "this is for Prolog and Epilog of slurm.conf" ;;
esac
