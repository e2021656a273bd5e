"""kvcsa: run transformer language models around a very small KV cache.

    import kvcsa

    with kvcsa.Model("examples/models/tiny") as model, kvcsa.Pool() as pool, pool.session(model) as session:
        session.append(model.tokenize("In the beginning"))
        for text in session.stream(40):
            print(text, end="", flush=True)

Names and meanings are those of include/kvcsa.h, which describes every function, its errors and its threads.
"""

from ._abi import (
    KVCSA_ABI, KVCSA_VERSION_NUMBER, Attention, Backend, Candidates, CpuFlags, DecoderReplay, EraseFlags, Evict, Format,
    Layers, Log, Logits, Mode, ModelFlags, Pooling, PoolFlags, Read, Reason, Reuse, Select, SessionFlags, SettingFlags,
    SnapshotFlags, Status, TokenizeFlags, Trace, Value,
)
from .chunk import Chunk
from .errors import (
    ArgError, BackendError, BusyError, CancelledError, CorruptError, Error, FormatError, FullError, InternalError, IoError,
    LibraryError, LimitError, MismatchError, NoMemError, UnsupportedError,
)
from .hooks import Allocator, Executor
from .library import load, path as library_path, version
from .measure import Compare, Setting, compare_greedy, compare_text, synth_checkpoint
from .model import Model, TextStream, agent_cost, format_name
from .plan import SELF, PlanRow
from .pool import Pool, StepResult, backend_info, cpu_info
from .records import (
    AgentCost, AgentParams, BackendInfo, CompareResult, CompareRow, Cost, CpuInfo, Estimate, ModelInfo, PoolStats,
    ResumeCost, ResumeParams, ReuseInfo, ServingCost, ServingParams, SessionParams, SessionStats, SnapshotInfo, SynthInfo,
    TraceEvent, Work,
)
from .rows import Rows
from .sampling import Sampler
from .session import Session
from .snapshot import inspect_snapshot, remove_snapshot

#: Version of the library that this package was written for.
__version__ = f"{KVCSA_VERSION_NUMBER // 10000}.{KVCSA_VERSION_NUMBER // 100 % 100}.{KVCSA_VERSION_NUMBER % 100}"
__all__ = [
    "AgentCost", "AgentParams", "Allocator", "ArgError", "Attention", "Backend", "BackendError", "BackendInfo", "BusyError",
    "CancelledError", "Candidates", "Chunk", "Compare", "CompareResult", "CompareRow", "CorruptError", "Cost", "CpuFlags",
    "CpuInfo", "DecoderReplay", "EraseFlags", "Error", "Estimate", "Evict", "Executor", "Format", "FormatError",
    "FullError", "InternalError", "IoError", "KVCSA_ABI", "KVCSA_VERSION_NUMBER", "Layers", "LibraryError", "LimitError",
    "Log", "Logits", "MismatchError", "Mode", "Model", "ModelFlags", "ModelInfo", "NoMemError", "PlanRow", "Pool",
    "PoolFlags", "PoolStats", "Pooling", "Read", "Reason", "ResumeCost", "ResumeParams", "Reuse", "ReuseInfo", "Rows",
    "SELF", "Sampler", "Select", "ServingCost", "ServingParams", "Session", "SessionFlags", "SessionParams", "SessionStats",
    "Setting", "SettingFlags", "SnapshotFlags", "SnapshotInfo", "Status", "StepResult", "SynthInfo", "TextStream",
    "TokenizeFlags", "Trace", "TraceEvent", "UnsupportedError", "Value", "Work", "agent_cost", "backend_info",
    "compare_greedy", "compare_text", "cpu_info", "format_name", "inspect_snapshot", "library_path", "load",
    "remove_snapshot", "synth_checkpoint", "version",
]
