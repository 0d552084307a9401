# A single-machine Slurm with accounting, and a login host in front of it, for deploy/quickstart.sh. To be sourced after
# prerequisites.sh. Everything listens on loopback and is kept below one folder; nothing of the machine's own Slurm,
# MariaDB, munge or sshd is read or written. MariaDB runs as its own user and listens on a socket that only root can reach.
# shellcheck shell=bash

SLURM_PORT=${MINIK8S_SLURM_PORT:-17400} # sshd; the next ones: slurmdbd, slurmctld, slurmd

# slurm_daemon DIR NAME COMMAND...: starts a daemon unless it runs; its process id is in DIR/pids/NAME.
slurm_daemon() {
	local dir=$1 name=$2
	shift 2
	if slurm_runs "$dir" "$name"; then return 0; fi
	SLURM_CONF=$dir/slurm.conf MYSQL_UNIX_PORT=$dir/db/socket setsid "$@" >>"$dir/log/$name" 2>&1 </dev/null &
	echo $! >"$dir/pids/$name"
}

# slurm_runs DIR NAME: true if the process runs, and is not another that reused its id, such as the machine's own sshd:
# the folder must be in its arguments or, for Slurm's daemons, in its environment.
slurm_runs() {
	local pid
	pid=$(cat "$1/pids/$2" 2>/dev/null) || return 1
	grep -qaF -- "$2" "/proc/$pid/cmdline" 2>/dev/null &&
		cat "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null | grep -aF -- "$1/" >/dev/null
}

# slurm_wait WHAT LOG COMMAND...: waits until the command succeeds, for at most a minute.
slurm_wait() {
	local what=$1 log=$2 try
	shift 2
	for try in $(seq 1 120); do
		"$@" >/dev/null 2>&1 && return 0
		sleep 0.5
	done
	die "$what after 60 s (try $try); see $log"
}

slurm_is_idle() { [ "$(SLURM_CONF=$1/slurm.conf sinfo -h -o %T 2>/dev/null)" = idle ]; }

# start_slurm DIR: creates the cluster on the first call, and starts every daemon that does not run.
start_slurm() {
	local dir=$1 password
	local db=(mariadb --no-defaults "--socket=$dir/db/socket" -u root)
	if [ ! -e "$dir/complete" ]; then
		# Daemons that a failed start left running.
		stop_slurm "$dir"
		say "making a Slurm of one machine in $dir"
		rm -rf "$dir"
		mkdir -p "$dir"/{munge,db/data,db/tmp,state,spool,log,pids,jobs}
		chmod 755 "$dir/munge"
		chown -R mysql: "$dir/db"
		chmod 700 "$dir/db"
		slurm_settings "$dir"
		mariadb-install-db --no-defaults --datadir="$dir/db/data" --tmpdir="$dir/db/tmp" --skip-test-db \
			--auth-root-authentication-method=socket --auth-root-socket-user=root --user=mysql \
			>"$dir/log/install-db" 2>&1 ||
			die "cannot make the database of Slurm's accounts; see $dir/log/install-db"
	fi
	mkdir -p /run/sshd
	slurm_daemon "$dir" sshd /usr/sbin/sshd -D -e -f "$dir/sshd_config"
	slurm_daemon "$dir" munged munged --force --foreground --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
		--pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
	slurm_daemon "$dir" mariadbd mariadbd --no-defaults --user=mysql --skip-networking --secure-file-priv="$dir/db/tmp" \
		--innodb-buffer-pool-size=64M --datadir="$dir/db/data" --tmpdir="$dir/db/tmp" --socket="$dir/db/socket" \
		--pid-file="$dir/db/pid"
	slurm_wait "MariaDB does not answer" "$dir/log/mariadbd" "${db[@]}" -e 'select 1'
	password=$(sed -n 's/^StoragePass=//p' "$dir/slurmdbd.conf")
	"${db[@]}" <<<"create database if not exists slurm_acct_db;
		grant all on slurm_acct_db.* to 'slurm'@'localhost' identified by '$password';" ||
		die "cannot make the database of Slurm's accounts; see $dir/log/mariadbd"
	slurm_daemon "$dir" slurmdbd slurmdbd -D
	slurm_wait "slurmdbd does not answer" "$dir/log/slurmdbd" bash -c ": </dev/tcp/127.0.0.1/$((SLURM_PORT + 1))"
	slurm_daemon "$dir" slurmctld slurmctld -D
	slurm_daemon "$dir" slurmd slurmd -D
	slurm_wait "Slurm's node is not idle" "$dir/log/slurmctld" slurm_is_idle "$dir"
	touch "$dir/complete"
}

slurm_settings() {
	local dir=$1 host key password
	host=$(hostname -s)
	password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
	(
		umask 077
		head -c 1024 /dev/urandom >"$dir/munge/key"
		chmod 400 "$dir/munge/key"
		cat >"$dir/slurmdbd.conf" <<TEXT
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CommunicationParameters=NoInAddrAny
DbdAddr=127.0.0.1
DbdHost=localhost
DbdPort=$((SLURM_PORT + 1))
SlurmUser=root
LogFile=$dir/log/slurmdbd
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct_db
TEXT
	)
	cat >"$dir/slurm.conf" <<TEXT
ClusterName=quickstart
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$((SLURM_PORT + 2))
SlurmdPort=$((SLURM_PORT + 3))
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((SLURM_PORT + 1))
AccountingStoragePass=$dir/munge/socket
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=1024 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP
SlurmdParameters=config_overrides
TEXT
	for key in host_key user_key; do
		ssh-keygen -q -N '' -C '' -t ed25519 -f "$dir/$key"
	done
	cp "$dir/user_key.pub" "$dir/authorized_keys"
	cat >"$dir/sshd_config" <<TEXT
ListenAddress 127.0.0.1
Port $SLURM_PORT
HostKey $dir/host_key
AuthorizedKeysFile $dir/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
SetEnv SLURM_CONF=$dir/slurm.conf
PrintMotd no
TEXT
}

# stop_slurm DIR: stops its jobs and daemons.
stop_slurm() {
	local dir=$1 name try
	[ -d "$dir/pids" ] || return 0
	say "ending the Slurm that this script started"
	if slurm_runs "$dir" slurmctld; then
		SLURM_CONF=$dir/slurm.conf scancel --user=root 2>/dev/null || true
		for try in $(seq 1 60); do
			[ -n "$(SLURM_CONF=$dir/slurm.conf squeue -h 2>/dev/null)" ] || break
			sleep 0.5
		done
	fi
	for name in sshd slurmd slurmctld slurmdbd mariadbd munged; do
		slurm_runs "$dir" "$name" || continue
		kill "$(cat "$dir/pids/$name")" 2>/dev/null || true
		for try in $(seq 1 40); do
			slurm_runs "$dir" "$name" || break
			sleep 0.25
		done
		if slurm_runs "$dir" "$name"; then kill -9 "$(cat "$dir/pids/$name")" 2>/dev/null || true; fi
	done
}
