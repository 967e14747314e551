"""The words that no text or name of ingero uses, with what to write instead: one table, and its exceptions.

Why each is retired: it means something else to the people who read us (an epoch is a pass over the data, a loss is what
training minimizes, a target is what Prometheus scrapes), or the field has a word of its own. `check_vocabulary.py` finds
them. An exception is a phrase, never a file or a line: it says in which meaning the word is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """One retired word. prose: a pattern in texts, where a space stands for any white space; name: one in names.

    Names are columns, JSON keys, metrics, slugs, and views; view: a pattern in names of views alone. help_only: retired in
    help texts alone.
    """

    word: str
    instead: str
    prose: str = ""
    name: str = ""
    view: str = ""
    help_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """A phrase in which a retired word is right. where: its file is below one of these patterns."""

    phrase: str
    reason: str
    where: str = "*"


def _part(*words: str) -> str:
    """A pattern of a name that has one of these as a whole part: epoch in `epoch_flags`, not in `epochal`."""
    return rf"(?:^|(?<=[_.\-])){'|'.join(words) if len(words) == 1 else '(?:' + '|'.join(words) + ')'}(?=$|[_.\-])"


def _in_names(pattern: str) -> str:
    """A pattern of words as it finds them in names, whose parts an underscore joins."""
    before, after = r"(?<![A-Za-z])", r"(?![A-Za-z])"
    return pattern.replace(r"\b", before, 1).replace(r"\b", after)


_OF = r"(?:the|its|their|his|a|an|one|each|every|this|that|no|another|whose|of)"

RETIRED: tuple[Retired, ...] = (
    # steps and the model of a stream
    Retired(
        word="epoch",
        instead="sync interval (view sync_intervals)",
        prose=r"\bepochs?\b",
        name=_part("epochs?"),
    ),
    Retired(
        word="drain",
        instead="sync (of a stream); read (of a buffer)",
        prose=r"\bdrain(?:s|ed|ing|er)?\b",
        name=_part("drains?", "drained", "drain"),
    ),
    Retired(
        word="loss", instead="lost time, slowdown; dropped data", prose=r"\bloss(?:es)?\b", name=_part("loss", "losses")
    ),
    Retired(
        word="device empty",
        instead="GPU idle (nothing queued)",
        prose=r"\bdevice (?:is |was |stays |stood |has been )?empty\b|\bempty (?:device|GPU)s?\b|"
        r"\bnothing (?:is |was |had been |has been )?enqueued\b",
        name=rf"^e_ns$|{_part('empty')}_(?:run|runq|throttled|yielded|sleep|io|kernel_lock|stopped|ns)",
    ),
    Retired(word="device busy", instead="GPU busy (work queued or running)", prose=r"\bdevice busy\b", name=r"^x_ns$"),
    Retired(
        word="picked up late",
        instead="sync return delay (GPU done, call not returned)",
        prose=r"\bpick(?:s|ed|ing)? (?:it |them |that |this |the (?:result|work) )?up late\b|\bdevice late\b|"
        r"\bready, but\b|\bready, and not picked up\b|\bnot picked up\b|\blay there unread\b",
        name=rf"^p_ns$|{_part('picked_up_late')}",
    ),
    Retired(
        word="while enqueuing",
        instead="while launching",
        prose=r"\b(?:while|when) (?:it |they |the \w+ )?(?:was |were |is |are )?enqueu(?:ing|es?|ed)\b",
        name=rf"{_part('enqueue')}_(?:run|runq|throttled|yielded|sleep|io|kernel_lock|stopped)",
    ),
    Retired(
        word="a_ns, f_ns, s_ns, r_ns, b_ns",
        instead="prev_sync_end_ns, first_launch_ns, sync_start_ns, gpu_done_ns, sync_end_ns",
        prose=r"\b[afsrb]_(?:ns|tid)\b|\br_(?:low|high)_ns\b|\b[exp]_ns\b",
        name=r"^[afsrb]_(?:ns|tid|clocks)$|^r_(?:low|high)(?:_ns)?$",
    ),
    Retired(word="lane", instead="stream, main stream", prose=r"\blanes?\b", name=_part("lanes?")),
    Retired(
        word="on the path",
        instead="on the critical path",
        prose=r"\b(?:on|off) (?:the|its|their) (?-i:path)\b(?! (?:of|to|from|that|in|as|by|a|with|ingero)\b)|"
        r"\bthread on (?:its|the) path\b",
    ),
    Retired(
        word="feeding thread",
        instead="launching thread",
        prose=r"\bfeeding threads?\b|\b(?:feed|feeds|fed|feeding) (?:the|its|their|a|one) (?:device|GPU)s?\b",
    ),
    Retired(
        word="starving device",
        instead="while the GPU was idle",
        prose=r"\bstarv(?:ing|ed|es|e) (?:the |its |a )?devices?\b|\bdevices? (?:starved|is starving|was starving)\b",
    ),
    Retired(
        word="the device",
        instead="the GPU",
        prose=rf"\b{_OF} devices?\b(?! (?:ordinal|synchroni|memory|plugin|node|file|number|name|mapper|tree|driver|code|id\b))"
        r"(?!'s (?:number|memory|name))",
    ),
    Retired(
        word="best regime",
        instead="baseline",
        prose=r"\bregimes?\b|\(usually |, usually \d|\b(?:against|than) (?:the|its|their) reference\b|"
        r"\b(?:the|its|their) usual (?:pace|rate|regime|time|duration)\b",
        name=_part("regimes?", "usual"),
    ),
    Retired(
        word="step class",
        instead="step type",
        prose=r"\b(?:step|sync interval)s? class(?:es)?\b|\bclass(?:es)? of (?:the |its |a |one )?(?:step|epoch|sync interval)s?\b",
        name=_part("class_key", "class_keys", "step_class", "step_classes", "classes"),
    ),
    Retired(
        word="without demand", instead="no work requested", prose=r"\bwithout demand\b|\bidle by (?:its )?design\b"
    ),
    # thread states
    Retired(
        word="clocks (of a thread)",
        instead="thread-state time",
        prose=r"\beight clocks\b|\brun-queue clocks?\b|\bclocks? of (?:a|the|its|each|one|that|this) (?:threads?|calls?|process)\b|"
        r"\bthreads?'s? clocks?\b|\bno thread's clock\b",
        name=_part("clock_seconds", "clocks_ns", "clock_texts"),
    ),
    Retired(
        word="account", instead="time breakdown", prose=r"\baccounts?\b(?! for\b)", name=_part("account", "accounts")
    ),
    Retired(
        word="others ran",
        instead="runnable (waiting for a CPU)",
        prose=r"\brunnable, (?:while )?others ran\b|\bothers ran\b",
    ),
    Retired(
        word="against its will",
        instead="involuntary off-CPU time",
        prose=r"\bagainst (?:its|their|the \w+(?:'s)?|a \w+'s) will\b|\bkept off (?:its|the|their|a) CPUs?\b",
    ),
    Retired(word="by its own choice", instead="sleeping", prose=r"\b(?:by|of) (?:its|their) own choice\b"),
    Retired(word="asleep", instead="sleeping", prose=r"\basleep\b", name=_part("asleep")),
    Retired(word="waiting for disk", instead="I/O wait", prose=r"\bwait(?:ing|s|ed)? for (?:the |a )?disks?\b"),
    Retired(
        word="blocked in the kernel",
        instead="uninterruptible (D state)",
        prose=r"\bblocked in the kernel\b|\bkernel locks?\b|\bkernel_lock\b",
        name=_part("kernel_lock"),
    ),
    Retired(
        word="gave the CPU away",
        instead="yielded",
        prose=r"\b(?:gave|gives?|giving|given) (?:the |its |their |a )?CPU away\b",
    ),
    Retired(word="kept off by a quota", instead="throttled (CPU quota)", prose=r"\bkept off by\b"),
    Retired(word="parked", instead="blocked, sleeping", prose=r"\b(?:un)?parked\b|\bparks\b", name=_part("parked")),
    Retired(
        word="switches",
        instead="context switches",
        prose=r"(?:(?<=\d)|(?<=\})|(?<=\bof)|(?<=\bmany)|(?<=\bfewer)|(?<=\bmore)|(?<=\binvoluntary)) switches\b",
    ),
    Retired(
        word="preemptions",
        instead="involuntary context switches",
        prose=r"\bpreemptions?\b|\bwhile they could have gone on\b",
        name=_part("preemptions?"),
    ),
    Retired(
        word="handed over between threads",
        instead="unattributed; launch and sync on different threads",
        prose=r"\bhanded over between threads\b|\bno thread's time covers\b",
    ),
    Retired(word="the device itself", instead="GPU execution", prose=r"\bthe device itself\b"),
    # who and what
    Retired(word="victim", instead="affected process", prose=r"\bvictims?\b", name=_part("victims?")),
    Retired(
        word="taker",
        instead="culprit; CPU time used by; ran instead",
        prose=r"\btakers?\b|\btook (?:the |its |their |that )?CPU\b(?! time\b)|\bstolen by\b|\bwho took\b",
        name=_part("takers?"),
    ),
    Retired(
        word="went before it",
        instead="preempted it, ran ahead of it",
        prose=r"\b(?:went|goes|go|going) before (?:it|them|its)\b",
    ),
    Retired(
        word="charged",
        instead="attributed to",
        prose=r"\b(?:un)?charg(?:es?|ed|ing)\b|\bowner of (?:the |its |that )?(?:lost )?time\b",
        name=_part("charges?", "charged"),
    ),
    Retired(word="targets", instead="traced processes", prose=r"\btargets?\b(?!-)", name=_part("targets?")),
    Retired(word="machine", instead="host (text), node (Kubernetes)", prose=r"(?<![$\w{.])machines?\b(?![-_=.(])"),
    Retired(word="control group", instead="cgroup", prose=r"\bcontrol groups?\b"),
    Retired(
        word="crowding",
        instead="CPU contention",
        prose=r"\b(?:over)?crowd(?:s|ed|ing)?\b",
        name=_part("crowds?", "crowding"),
    ),
    Retired(
        word="finds no slot",
        instead="process limit reached",
        prose=r"\bno (?:process )?slots?\b|\bprocess slots?\b|\bfree slots?\b|\bof (?:\w+ )?slots\b",
    ),
    # the report
    Retired(
        word="known by", instead="Evidence", prose=r"\bknown by:|\b(?:how|by what) (?:that|it|this) (?:is|was) known\b"
    ),
    Retired(
        word="try:",
        instead="Fix: (errors of the command line: hint:)",
        prose=r"(?:^|(?<=[\s(;\"']))try:(?= \S|$)|^\s*what to do\s*$",
    ),
    Retired(word="noticed", instead="Impact", prose=r"\b(?:victim|process) (?:has )?noticed\b"),
    Retired(
        word="who took the time", instead="Culprits; Affected processes", prose=r"\bwho (?:took|lost) (?:the )?time\b"
    ),
    Retired(
        word="where the lost time went",
        instead="Lost-time breakdown",
        prose=r"\bwhere (?:the|its) (?:lost )?time went\b",
    ),
    Retired(word="how it came and went", instead="Timeline", prose=r"\bhow it came and went\b|\bcame and went\b"),
    Retired(word="the numbers behind it", instead="Details", prose=r"\bnumbers behind it\b"),
    Retired(word="see the incidents", instead="see incidents above", prose=r"\bsee the incidents\b"),
    Retired(
        word="goes on",
        instead="ongoing",
        prose=r"\bincidents? (?:that |which |is |are )?go(?:es|ing)? on\b|\b(?:and|null:) it goes on\b|^\s*go(?:es|ing)? on\s*$",
        name=_part("going_on", "goes_on"),
    ),
    Retired(
        word="for as long as it was seen",
        instead="steady-state bottleneck (no baseline)",
        prose=r"\bfor as long as (?:it|they) (?:was|were) seen\b",
    ),
    Retired(word="stretch", instead="time range", prose=r"\bstretch(?:es|ed)?\b", name=_part("stretch", "stretches")),
    Retired(word="in its worst second", instead="peak 85% (1 s)", prose=r"\bworst second\b"),
    Retired(word="lost share", instead="time lost (%)", prose=r"\blost share\b|\bshare lost\b"),
    Retired(
        word="not evaluated",
        instead="not checked (no data)",
        prose=r"\bnot evaluated\b|\bsilence (?:is|about|of|on|here)\b|\ball[- ]clear\b",
        name=_part("not_evaluated"),
    ),
    Retired(word="looked at", instead="checked", prose=r"\blook(?:s|ed) at\b"),
    Retired(
        word="told",
        instead="reported, detected; cannot be distinguished",
        prose=r"\b(?:un)?told\b|\btell(?:s|ing)? (?:\w+ ){0,4}apart\b",
    ),
    Retired(
        word="moment",
        instead="time",
        prose=r"\bmoments?\b|\b(?:came|comes|come) to be\b|\ball of it\b",
    ),
    Retired(word="whom", instead="a sentence with a subject", prose=r"\bwhom\b|\bwhoever\b|\bwhomever\b"),
    Retired(word="who", instead="name the process or the reader", prose=r"\bwho(?:se)?\b", help_only=True),
    # the recorder
    Retired(
        word="lost or repaired",
        instead="dropped or corrected",
        prose=r"\blost or repaired\b|\brepaired or lost\b|\bnothing was lost\b|"
        r"\b(?:events?|samples?|records?|data|stacks?) (?:was|were|is|are|has been|have been|that was|that were) lost\b",
    ),
    Retired(
        word="governor",
        instead="overhead limiter (view overhead_levels)",
        prose=r"\bgovern(?:ors?|ed by)\b",
        name=_part("governors?"),
    ),
    Retired(word="rung", instead="overhead level", prose=r"\brungs?\b", name=_part("rungs?")),
    Retired(word="thrift", instead="overhead limiter", prose=r"\bthrift\w*\b", name=_part("thrift")),
    Retired(
        word="given up",
        instead="tracing reduced",
        prose=r"\bwhat (?:was|is|were|has been) given up\b|\b(?:tracing|launches|events|copies|stacks|allocations) (?:\w+ )?given up\b|\b(?:all|everything) is traced again\b|\bless (?:is|was) traced\b",
        name=_part("given_up"),
    ),
    Retired(
        word="removed, folded",
        instead="pruned, downsampled",
        prose=r"\bfolded (?:into|to|from|rows|seconds|by)\b|\bsize limit has (?:taken|removed)\b|\bview removed\b|(?-i:\bFROM removed\b)",
        name=r"^removed$|^folded$",
    ),
    Retired(
        word="samples (view)",
        instead="stack_samples",
        prose=r"(?-i:\b(?:FROM|JOIN) samples\b)|\bview samples\b",
        view=r"^(?:raw_)?samples$",
    ),
    Retired(
        word="the rare, the slow and a sample",
        instead="sampled: all slow and rare calls, plus a random sample",
        prose=r"\bthe rare(?:, | and )the slow\b|\ba part of all\b|\brare and slow ones\b",
    ),
    Retired(
        word="open call",
        instead="in-flight call",
        prose=r"\bcalls? (?:that )?(?:are |were |is |was |have been |has been )?(?:still )?open (?:for|since|over|longer)\b|\bopen calls?\b",
        name=_part("open_calls?"),
    ),
    Retired(
        word="inside others", instead="nested", prose=r"\bcalls? inside (?:other|another|others)\b|\binside others\b"
    ),
    Retired(word="longest sum first", instead="sorted by total time", prose=r"\blongest sum first\b"),
    Retired(word="given back, in vain", instead="freed, failed", prose=r"\bgiven back\b|\bin vain\b"),
    Retired(
        word="mend, befall",
        instead="fix; affect",
        prose=r"\bmend(?:s|ed|ing)?\b|\bbef(?:e|a)ll(?:s|en)?\b",
    ),
    Retired(
        word="story, scene",
        instead="scenario, simulated",
        prose=r"\bstor(?:y|ies)\b|\bscenes?\b|\b(?:was|were|is|are|be) played\b",
        name=_part("story", "stories", "scenes?"),
    ),
    Retired(
        word="say whether, ask a recording",
        instead="check whether; query a recording",
        prose=r"\bsay whether\b|\bask(?:s|ed)? (?:a|the|your) recordings?\b|\bwho wants to read\b",
    ),
    # slugs
    Retired(
        word="hidden-synchronisation",
        instead="unexpected-sync",
        prose=r"\bhidden[- ]synchroni[sz]ations?\b",
        name=r"hidden[-_]synchroni[sz]ation",
    ),
    Retired(
        word="gpu-shared, gpu-steal",
        instead="gpu-contention",
        prose=r"\bgpu-(?:shared|steal)\b",
        name=r"^gpu[-_](?:shared|steal)$",
    ),
    Retired(word="call-in-flight", instead="hung-call", prose=r"\bcall-in-flight\b", name=r"^call-in-flight$"),
    Retired(
        word="page-fault-storm",
        instead="major-page-faults",
        prose=r"\bpage-fault-storm\b",
        name=r"page[-_]fault[-_]storm",
    ),
    Retired(
        word="network-file-wait",
        instead="network-filesystem-wait",
        prose=r"\bnetwork-file-wait\b",
        name=r"network[-_]file[-_]wait",
    ),
    Retired(word="timer-sleep", instead="sleep-in-loop", prose=r"\btimer-sleep\b", name=r"timer[-_]sleep"),
    # typography and spelling
    Retired(word="NN %", instead="NN% (no space)", prose=r"(?:(?<=\d)|(?<=\})) %(?=[\s.,;:)\]/]|$)"),
    Retired(word="us (unit)", instead="µs", prose=r"(?:(?<=\d)|(?<=\})) ?us\b"),
    *(
        Retired(word=british, instead=american, prose=pattern, name=_in_names(pattern))
        for british, american, pattern in (
            ("neighbour", "neighbor", r"\bneighbour\w*"),
            ("colour", "color", r"\b\w*colour\w*"),
            ("behaviour", "behavior", r"\b\w*behaviour\w*"),
            ("honour", "honor", r"\b\w*honour\w*"),
            ("favour", "favor", r"\b\w*favour\w*"),
            ("labour, harbour, rumour", "-or", r"\b(?:labour|harbour|rumour|flavour|vapour|odour|endeavour)\w*"),
            (
                "-ise",
                "-ize",
                r"\b(?:\w*synchron|real|recogn|organ|util|optim|initial|final|serial|normal|summar|minim|maxim|"
                r"priorit|virtual|special|general|visual|custom|author|categor|emphas|harmon|localis|local|memor|"
                r"parallel|quant|random|stabil|standard|sanit|vector|material|token|apolog|capital|central|character|"
                r"critic|crystall|equal|familiar|formal|itemis|item|legal|neutral|penal|person|modern)is(?:e[sdr]?|ing|ation\w*|able)\b",
            ),
            ("-yse", "-yze", r"\b(?:\w*anal|paral|catal)ys(?:e[sdr]?|ing)\b(?<!analyses)"),
            ("cancelled", "canceled", r"\bcancell(?:ed|ing)\b"),
            ("labelled", "labeled", r"\b(?:un|re)?labell(?:ed|ing)\b"),
            (
                "doubled l",
                "modeled, traveled, signaled, ...",
                r"\b(?:modell|travell|signall|channell|levell|tunnell|fuell|marshall|totall|dialled|diall|initiall)(?:ed|ing|er|ers)\b",
            ),
            ("judgement", "judgment", r"\bjudgements?\b"),
            (
                "centre, metre, fibre, litre",
                "center, meter, fiber, liter",
                r"\b(?:centre[sd]?|(?:kilo|milli|centi)?metres?|fibres?|litres?|theatres?)\b",
            ),
            ("licence, defence, offence", "license, defense, offense", r"\b(?:licence|defence|offence|pretence)s?\b"),
            ("grey", "gray", r"\bgrey(?:s|ed|ish)?\b"),
            ("artefact", "artifact", r"\bartefacts?\b"),
            ("whilst, amongst", "while, among", r"\b(?:whilst|amongst)\b"),
            ("learnt, spelt, burnt", "learned, spelled, burned", r"\b(?:learnt|spelt|burnt|dreamt|leant)\b"),
            ("programme", "program", r"\bprogrammes?\b"),
            (
                "fulfil, enrol, skilful",
                "fulfill, enroll, skillful",
                r"\b(?:fulfils?|enrols?|skilful\w*|wilful\w*|instalments?)\b",
            ),
            (
                "sceptic, ageing, mould",
                "skeptic, aging, mold",
                r"\b(?:sceptic\w*|ageing|moulds?|ploughs?|tyres?|aluminium|cheques?)\b",
            ),
        )
    ),
)

_CUDA_DEVICE = "CUDA's and the kernel's own term"

ALLOWED: tuple[Allowed, ...] = (
    # epoch
    Allowed(phrase=r"\b(?:unix|posix|the Unix) epoch\b", reason="the begin of Unix time"),
    Allowed(phrase=r"\bepochs? of (?:the |its |a )?(?:data|dataset|training|loader)\b", reason="a pass over the data"),
    Allowed(phrase=r"\b(?:training|data|dataset) epochs?\b", reason="a pass over the data"),
    Allowed(
        phrase=r"\bfor epoch in\b|\bSOURCE_DATE_EPOCH\b|\bset_epoch\b",
        reason="code of a training loop; a variable of builds",
    ),
    # drain
    Allowed(
        phrase=r"\bkubectl drain\b|\bdrain(?:s|ed|ing)? (?:a |the |that )?nodes?\b|\bnodes? (?:is|are|was|were) drained\b|"
        r"\bscontrol\b[^\n]*\bDRAIN\b|\bSTATE=DRAIN\b|(?-i:\bDRAIN(?:ED|ING)?\b)",
        reason="Kubernetes' and Slurm's term",
    ),
    # loss
    Allowed(
        phrase=r"\bloss\.(?:detach|item|backward|cpu|mean|float)\b|\bloss(?:es)?\s*(?:=|\+=)\s|\bprint\(loss\b|"
        r"\b(?:total|running)_loss\b|\breturn loss\b|\(loss\b",
        reason="code of a training loop",
    ),
    Allowed(
        phrase=r"\b(?:training|validation|model's|network's|step's|batch's) loss(?:es)?\b|\bloss (?:function|of (?:a|the|each) (?:batch|model)|"
        r"value|scal\w+|curve)s?\b|\b(?:reads?|reading|print(?:s|ing)?|log(?:s|ging)?) (?:the|its|a) loss\b",
        reason="what training minimizes",
    ),
    Allowed(
        phrase=r"\bpacket(?:s'|'s)? loss(?:es)?\b|\bloss (?:rate|of packets)\b|\btail[- ]loss\b|\bnetem\b[^\n]*\bloss\b|\bdata loss\b|\bloss of (?:a )?(?:data|leader|quorum|power)\b",
        reason="TCP's and storage's term",
    ),
    # lane
    Allowed(
        phrase=r"\bPCIe? (?:gen\w* )?\w* ?lanes?\b|\blanes? of (?:the|a|its) (?:PCIe?|link)\b|\bpcie_lanes\b|\bwarp lanes?\b|(?:\b\d+|\bx\d+|\{\}) lanes?\b|\bgeneration and lanes\b|\bfewer lanes\b",
        reason="of a PCIe link, of a warp",
    ),
    # the device
    Allowed(
        phrase=r"\b(?:block|network|character|storage|disk|PCI|loop|MIG|I/O|input|null|tap|veth|major:minor) devices?\b|"
        r"\bdevices? (?:major|minor)\b|\bdevices? of (?:the|a) disk\b",
        reason=_CUDA_DEVICE,
    ),
    Allowed(
        phrase=r"\b(?:host|device)[- ]to[- ](?:host|device|device)\b|\bdevice[- ]side\b|\b(?:whole|entire) devices?\b",
        reason="CUDA's term",
    ),
    # clocks, account
    Allowed(
        phrase=r"\b(?:service|user|system|bank|storage|cloud|GitHub|PyPI|admin|login|unix|systemd's|root) accounts?\b|\bserviceaccounts?\b|\binto account\b|\bon (?:account|no account) of\b|"
        r"\baccounts? (?:of the system|name|with|without a (?:shell|login))\b|\ban account of its own\b|\b(?:not|to|cannot) account (?:them|it)\b",
        reason="of a user; idioms",
    ),
    Allowed(phrase=r"\bservice_account\w*\b|\bservice-account\w*\b", reason="Kubernetes' term"),
    # threads
    Allowed(
        phrase=r"(?-i:\bTASK_PARKED\b)|\bP \(parked\)|\bkthread\w*\b[^\n]*\bparked\b", reason="the kernel's own state"
    ),
    Allowed(
        phrase=r"\bpreemptions? of (?:requests?|sequences?)\b|\bnum_preemptions\w*\b|\brequests?' preemptions?\b|\brequest preemptions?\b|\bvLLM[^.\n]*\bpreemptions?\b",
        reason="vLLM's term for requests",
    ),
    Allowed(
        phrase=r"(?-i:\bCONFIG_PREEMPT\w*)|\b(?:kernel|full|lazy) preemption\b|\bpreemption (?:model|counter|disabled|off|left on)\b|"
        r"\bkernel without preemption\b",
        reason="the kernel's own term",
    ),
    Allowed(phrase=r"\bkernel locks?\b(?= (?:of|in) )", reason="a lock in the kernel, not the state"),
    # who and what
    Allowed(
        phrase=r"\bOOM(?: killer)?(?:'s)? victims?\b|\bvictims? of the OOM killer\b|\bkilled victims?\b|\boom_victim\w*\b|\bmark_victim\b",
        reason="the kernel's own term",
    ),
    Allowed(
        phrase=r"\bcharg(?:ed|es?|ing) (?:to|against) (?:the |a |its |that )?(?:cgroup|memcg|memory cgroup)\b|\bmemcg charges?\b|\bfree of charge\b",
        reason="the kernel's own term for memory; money",
    ),
    Allowed(
        phrase=r"\b(?:scrape|scraping|build|make|make's|cargo|architecture|symlink|link|jump|branch|compile|rust|clang) targets?\b|\btargets? (?:of|for) "
        r"(?:make|a symlink|the link|the symlink|a build|Prometheus|the linker|a jump)\b|--target\b|\btarget (?:architecture|triple|cpu)\b|-target\b|"
        r"\b[\w-]+\.target\b|\btarget_info\b|\b__\w*target\w*__\b|\btarget_label\b|\b(?:static_configs|scrape_configs)\b[^\n]*\btargets\b|^\s*-?\s*targets:|"
        r"\bbpf-target\b|\bStopping target\b",
        reason="Prometheus', systemd's, make's and the compiler's term",
    ),
    Allowed(
        phrase=r"\bvirtual machines?\b|\bmachine[- ]learning\b|\bmachine code\b|\bmachine[- ]readable\b|\bstate machines?\b|\bmachine[-_ ]ids?\b|/etc/machine-id|\bmachine type\b|"
        r"\bmachine instructions?\b|\bmachine words?\b|\bpython[\w.]* machine\b|\bSQLite's machine\b|\bplatform\.machine\b|\bother machine \(ELF\)|\bELF machine\b|\bvirtual[- ]machine's\b",
        reason="the field's own terms",
    ),
    Allowed(phrase=r"\"targets\": \[", reason="Grafana's key", where="examples/grafana/*"),
    # names of the bench and of tests, which developers alone read
    Allowed(
        phrase=r"\b[a-z]+(?:_[a-z]+)*-\d+-(?:block|spin|yield)[\w.-]*|`[a-z_]+-\*`",
        reason="a run's name in labeled-runs.jsonl, as it was recorded",
        where="docs/adr/* docs/measurements/*",
    ),
    Allowed(
        phrase=r"\bbench\.drain\b|\btests/integration/accounts\b|--suite accounts\b",
        reason="names of a bench and of a folder of tests",
        where="docs/kernels.md docs/measurements/*",
    ),
    # idioms
    Allowed(
        phrase=r"\bat (?:a|first|second|this|that|each|every|the same) look\b|\ba look at\b", reason="not the verb"
    ),
    Allowed(
        phrase=r"\bcpufreq governors?\b|\b(?:performance|powersave|schedutil|ondemand|frequency|scaling) governors?\b|\bscaling_governor\b",
        reason="cpufreq's term",
    ),
    Allowed(phrase=r"\bat a stretch\b|\b(?:for|in) a moment\b|\bat the moment\b|\bmoment ago\b", reason="idiom"),
    Allowed(phrase=r"\b(?:second|first|one|a|another) try:", reason="the noun"),
    Allowed(
        phrase=r"\b(?:Python|program|command|file|ingero|nvcc|compiler)s? on the path\b", reason="of the shell's PATH"
    ),
    Allowed(
        phrase=r"\bhidden-synchronisation\b|\bgpu-shared\b|\bcall-in-flight\b|\bpage-fault-storm\b|"
        r"\bnetwork-file-wait\b|\btimer-sleep\b",
        reason="causes as recordings of earlier builds hold them",
        where="src/ingero/store/older/earlier_names.py",
    ),
    Allowed(
        phrase=r"\bwaits for events end no epoch\b|\bepochs are not comparable\b|\ba part of the stack was lost\b|"
        r"\b[\d.]+(?: |)% of the usual number of records, rings drained every\b",
        reason="sentences as recordings of version 1 hold them",
        where="src/ingero/store/older/older_values.py",
    ),
    Allowed(
        phrase=r"\bgpu-steal\b",
        reason="a published name of `demo`, accepted as an alias",
        where="src/ingero/demo/* docs/* README.md CHANGELOG.md",
    ),
)


@lru_cache(maxsize=1)
def compiled() -> tuple[tuple[Retired, re.Pattern[str] | None, re.Pattern[str] | None, re.Pattern[str] | None], ...]:
    """Each retired word with its patterns in texts, in names, and in names of views; None: it has none."""
    return tuple((word, *map(_compiled, (word.prose, word.name, word.view or word.name))) for word in RETIRED)


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    if not pattern:
        return None
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)


def allowed_spans(text: str, path: str, exceptions: Sequence[Allowed] = ALLOWED) -> Iterator[tuple[int, int]]:
    """Begin and end of each phrase of a text that may stand there whatever words are in it."""
    for one in exceptions:
        pattern = _compiled(one.phrase)
        if pattern is not None and any(fnmatchcase(path, where) for where in one.where.split()):
            yield from (match.span() for match in pattern.finditer(text))
