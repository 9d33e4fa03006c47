"""Handlers of signals, kept from where the engine may not be left.

Python runs a handler between two instructions of the main thread, and where C or C++ lets it. With
CUDA much is C++ that is Python here: memory that is freed runs a finalizer, whose exceptions Python
only prints, so that the program would go on as if nobody had interrupted it; a clock or an
allocator that is left amid a change is of no more use. And wherever torch asks for the device's
guard, pybind11 lets handlers run in a function that ends the process if one raises.

So handlers are called by the interpreter, between two of its instructions: the next at which it
looks and that is none of the former. There they may raise, and call torch, of which C++ may hold
locks. A program that sleeps, or waits for somebody, comes back to no interpreter for a while: it is
woken, and hears of it there. Signals of one number that come meanwhile count as one, as they
do before the system has delivered them.

Where threads cannot be sent signals (on Windows) handlers come as Python has them. Threads get no
signals, and an error that one is to meet is given to it where it harms nothing.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container
from contextlib import suppress
from dis import opmap
from sys import _current_frames, _getframe  # documented, both
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from .patching import FOR_GOOD

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Frame = FrameType | None
Handler = Callable[[int, Any], object]
Action = Callable[[Frame], object]

AGAIN_S, AT_MOST_S = 1e-3, 0.1
_BY_PYTHON = {opmap["RESUME"], opmap["JUMP_BACKWARD"]}
_sleep, _now = time.sleep, time.monotonic  # of the real clock
_set, _get = signal.signal, signal.getsignal
# What a dead key's reference calls raises nothing either.
_weak: list[Any] = [WeakSet(), WeakKeyDictionary(), WeakValueDictionary()]
_closed: set[CodeType] = {each._remove.__code__ for each in _weak}  # noqa: SLF001
_open: set[CodeType] = set()
_waits: set[CodeType] = set()
_sent: list[int] = []  # by the main thread, maybe to itself: it waits for the handler
_waiting: dict[int, Action] = {}  # for each number: to call its handler


def closed_to_handlers(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let handlers of signals wait until this function, a decorator's argument, is over: it calls
    nothing of the program's, and waits for nobody, but in what is `open_to_handlers`."""
    _closed.add(function.__code__)
    return function


def open_to_handlers(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let handlers come in this function, and what it calls, whoever has called it."""
    _open.add(function.__code__)
    return function


def waits_for_others(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a handler interrupt this function at once: it calls nothing in C++, but the system."""
    _waits.add(function.__code__)
    return function


def hold_handlers() -> None:
    """From now on, and for those that there are if this is the main thread: once a process."""
    if not hasattr(signal, "pthread_kill"):
        return

    @functools.wraps(_set)
    def set_handler(number: int, handler: Any) -> Any:
        comes_anywhere = getattr(handler, "__code__", None) in _closed
        if callable(handler) and not comes_anywhere:
            return _own(_set(number, functools.partial(_heard, handler)))
        return _own(_set(number, handler))

    FOR_GOOD.set(signal, "signal", set_handler)
    FOR_GOOD.set(signal, "getsignal", functools.wraps(_get)(lambda number: _own(_get(number))))
    FOR_GOOD.set(signal, "raise_signal", _sending(signal.raise_signal))
    FOR_GOOD.set(os, "kill", _sending(os.kill))
    kernel = sys.modules.get("ipykernel.kernelbase")
    if kernel is not None:  # it has the name, and sets the handler of interrupts for each cell
        FOR_GOOD.set(kernel, "signal", set_handler)
    with suppress(ValueError):  # in another thread than the main one none can be set
        for number in signal.valid_signals():
            handler = _get(number)
            if callable(handler):
                set_handler(number, handler)


def _own(handler: Any) -> Any:
    """What the program has set."""
    is_held = isinstance(handler, functools.partial) and handler.func is _heard
    return handler.args[0] if is_held else handler


def _sending(send: Callable[..., None]) -> Callable[..., None]:
    """A function that sends a signal, its last argument, maybe to its own process: the main thread
    is in C then, and not in torch's."""

    @functools.wraps(send)
    def sending(*args: int) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            send(*args)
            return
        _sent.append(args[-1])
        try:
            send(*args)
        finally:
            _sent.remove(args[-1])

    return sending


def _heard(handler: Handler, number: int, frame: Frame) -> None:
    """What Python calls, or C++: where that may be torch's, it calls and raises nothing."""
    if number in _waiting:
        return
    comes_now = number in _sent or _waits_for_others(frame)
    if comes_now and not _is_closed(frame):
        _call(handler, number, frame)
    else:
        _do_later(number, functools.partial(handler, number))


@open_to_handlers
def _call(handler: Handler, number: int, frame: Frame) -> None:
    handler(number, frame)


def _waits_for_others(frame: Frame) -> bool:
    code = None if frame is None else frame.f_code
    return code is not None and (code in _waits or code.co_filename == threading.__file__)


def _is_closed(frame: Frame) -> bool:
    """Whether handlers wait there: also in what is called as garbage is collected, from which no
    exception gets out."""
    collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    return _is_in(_closed | collecting, frame)


def _is_in(functions: Container[CodeType | None], frame: Frame) -> bool:
    """Whether one of them is being carried out there."""
    while frame is not None and frame.f_code not in _open:
        if frame.f_code in functions:
            return True
        frame = frame.f_back
    return False


def raise_in(thread: threading.Thread, error: type[BaseException], patience_s: float) -> None:
    """Let another thread meet an error, where the interpreter begins a function or a loop again:
    elsewhere it may be in C++. One that sleeps, or waits, meets it when it is back in Python; one
    that is over does not, whose number may be another's by now."""
    assert thread.ident is not None, "it has started"
    until_s = _now() + patience_s
    while not _may_be_left(_current_frames().get(thread.ident)):
        if _now() > until_s:
            break
        _sleep(AGAIN_S)
    if thread not in threading.enumerate():
        return
    ident = ctypes.c_ulong(thread.ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error))


def _may_be_left(frame: Frame) -> bool:
    """Whether a thread, which is there and has not the interpreter's lock, meets an error there."""
    return frame is None or (_is_by_python(frame) and not _is_closed(frame))


def _is_by_python(frame: Frame) -> bool:
    """Whether the interpreter is certain to be there: it begins a function, or a loop again."""
    return frame is not None and frame.f_code.co_code[frame.f_lasti] in _BY_PYTHON


class _Interpreter:
    """Asks whether this is true, when it has been `told` to: between two instructions of the main
    thread, as one of C's pending calls, which come right after handlers of signals."""

    urged = 0  # times
    has_asked = True
    is_asking = False  # and does not ask again meanwhile
    _is_told = False

    def tell(self) -> None:
        """Let it ask once: an exception may be on its way when it asks again."""
        if not self._is_told:
            self._is_told = True
            ask = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
            ctypes.pythonapi.Py_AddPendingCall(ask, ctypes.py_object(self))

    def __bool__(self) -> bool:
        self._is_told, self.is_asking = False, True
        try:
            frame = _getframe().f_back
            if _is_in(_OWN, frame):
                self.tell()  # again, until it is back at the program's instructions
            else:
                self.has_asked = True
                if _waiting and not _is_closed(frame):
                    _next()(frame)
        finally:
            self.is_asking = False
        return False


_interpreter = _Interpreter()


def _do_later(number: int, action: Action) -> None:
    """Call this in the main thread with the frame that it is in then."""
    _waiting[number] = action
    if not callable(_get(signal.SIGURG)):  # of all signals the one that is rarest
        _set(signal.SIGURG, _urged)
    if _get(signal.SIGURG) is _urged:
        with suppress(RuntimeError):  # at the end of Python there are no more threads
            _thread.start_new_thread(_urge, ())
    _interpreter.tell()


def _next() -> Action:
    return _waiting.pop(next(iter(_waiting)))


def _urge() -> None:
    main = threading.main_thread().ident
    assert main is not None, "it has started"
    pause_s, before = AGAIN_S, _interpreter.urged
    while True:
        _sleep(pause_s)
        if not _waiting:
            return
        # One that comes before the last is heard interrupts it, as that begins.
        pause_s = AGAIN_S if _interpreter.urged != before else min(2 * pause_s, AT_MOST_S)
        before = _interpreter.urged
        signal.pthread_kill(main, signal.SIGURG)  # without a turn of others in between


def _urged(_: int, frame: Frame) -> None:
    """Let the interpreter ask again, unless it has not since the last time: the program waits."""
    _interpreter.urged += 1
    if not _waiting:
        return
    if not _interpreter.is_asking:
        if _interpreter.has_asked:
            _interpreter.has_asked = False
            _interpreter.tell()
            return
    elif not _waits_for_others(frame) and not _is_by_python(frame):
        return  # a handler is under way, and may be in C++
    if not _is_closed(frame):
        _next()(frame)


_OWN = {_heard.__code__, _urged.__code__}
_closed |= _OWN
