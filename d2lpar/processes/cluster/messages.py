"""What ranks, and what goes wrong with them, are told in: kept together for translations."""

from ... import requirement

LINE = "{n} {ranks} · {backend} · {threads} {thread_word} each · measured"
LINE_VIRTUAL = "{n} virtual {ranks} ({why}) · gloo · they take turns · measured"
LINE_ENDED = "{n} {ranks}, ended: {why}"
PREFIX = "[rank {rank}] "

STARTING = "starting {n} {ranks}: {stage}"
STAGE_CONTROLLER = "controller"
STAGE_ENGINES = "{came} of {n} processes are there"
STAGE_GROUP = "process group"

ERROR_N = "cluster(n) takes a whole number of ranks from 1 on, not {n!r}"
ERROR_MANY = "cluster(n) starts a process for each rank, {most} at most, not {n}: ask for fewer"
ERROR_NO_N = "cluster() needs a number of ranks: cluster(2), or a profile that sets c.Cluster.n"
ERROR_PROFILE = (
    "there is no cluster profile {profile!r}: looked for ipcluster_config.py in {places}; "
    "copy one of notebooks/profiles and give its folder"
)
ERROR_MISSING = (
    "ranks in a notebook need {name}, which is not installed: "
    f'install it with `pip install "{requirement("lessons")}"`'
)
ERROR_CURVE = (
    "this pyzmq was built without CURVE, which keeps what ranks send from other users of the "
    "machine: install one that has it, with `pip install --force-reinstall pyzmq`"
)
ERROR_IN_RANK = "rank {rank} cannot start ranks of its own: call cluster() in the notebook"
ERROR_SYSTEM = (
    "a cluster profile needs Linux or macOS, and this is {system}: on Windows, WSL is Linux. "
    "par.cluster(2) without a profile has virtual ranks here"
)
ERROR_ASKED = "{name} is {value!r}: it may be 'virtual', or not set"
AS_ASKED = "as {name} asks"
NO_POSIX = "{system} has no others"
NO_PORTS = "ports are refused here: {reason}"
NO_PROCESSES = "processes are refused here: {reason}"
STAND_IN = (
    "ranks cannot be processes ({why}), so that virtual ones stand in. They take turns in this "
    "process: results are the same, and measured times are those of one processor"
)
ERROR_START = "{came} of {n} ranks came up {why}{log}"
ERROR_APART = "the {n} ranks came up, but did not find one another {why}"
TOO_LATE = (
    "within {seconds:g} s. `timeout_s={more:g}` gives them more time; "
    "fewer ranks need less of it, as this machine has {cores} cores"
)
BEFORE_ENDING = "before one of their processes ended ({how})"
LOG = "; the end of the log of {name}:\n{tail}"
NO_LOG = "; none of them logged an error (if a batch system starts them, see its queue)"

ENDED = "the ranks have ended: {why}. `ranks.restart()` starts them again"
NOT_STARTED = "there are no ranks yet: `ranks = par.cluster(2)` starts them"
STOPPED = "they were stopped"
INTERRUPTED = "the cell was interrupted while they were blocked"
INTERRUPT = "the ranks were blocked and have been ended: `ranks.restart()` starts them again"
ABANDONED = "the cell stopped while they were blocked"
CONTROLLER = "the process that connects them to the notebook ended ({how})"

RAISED = "rank {rank} raised {name}: {message}"
RAISED_BARE = "rank {rank} raised {name}"
GONE = "rank {rank} {how}"
DIED = "died: {how}"
SILENT = (
    "gave no heartbeat for {seconds} s: its process {pid} was stopped (SIGSTOP, a debugger) or "
    "starved; `kill -CONT {pid}` in time lets a stopped one go on"
)
GONE_OR_SILENT = "died: its process is gone, or gave no heartbeat for {seconds} s"
STOPPED_TOO_LONG = "stopped by a signal or a debugger for {seconds} s"
EXIT_CODE = "exit code {code}"
SIGNAL = "signal {number} ({name})"
UNKNOWN_EXIT = "its process is gone"
FREE = "All ranks are free again: the next cell can use them."
SURVIVORS = "The other ranks were ended with it: `ranks.restart()` starts them again."
ALONE = "`ranks.restart()` starts it again."
MISSING = (
    "{missing} of {sent} messages (reports, pieces of output) did not arrive: "
    "the connection to the notebook broke, or nothing came for {seconds:.0f} s\n"
)
NOTEBOOK_CELL = "cell of the notebook"

ERROR_SEND = "{what} cannot be sent to the ranks: {reason}{because}"
ERROR_RESULT = "the result, of type {kind}, cannot be sent to the notebook: {reason}"
BECAUSE = "; it is {names} that cannot"
ERROR_FUNCTION = "run(function) takes a function, not {what!r}; give its arguments after it"
ERROR_NAME = "ranks[name] takes the name of a variable, not {name!r}"
ERROR_RANK = "--rank takes ranks from 0 to {last}, such as 0 or 0,1, not {text!r}"
ERROR_RANKS = "ranks are numbers from 0 to {last}, at least one, not {ranks!r}"
ERROR_LIVE = "--live takes the name of a callable(rank, values), and {name!r} is {what}"
ERROR_REPORT = "report() sends values from a rank to the notebook, and this is no rank"
ERROR_BUSY = "the ranks are working for another cell or thread: wait until that is done"
