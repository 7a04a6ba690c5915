"""Mounting a volume's disk image, seen by the calling process and its children alone.

A reader may rely on:
  * the caller has a mount namespace of its own (``launch``). When the last process in it is gone, however it ended, the
    kernel unmounts the image and frees the loop device: there is nothing to undo, and the host's own table of mounts
    never shows it;
  * an image is mounted once at a time: the loop device keeps the lock of the handle it was given, and lets go of it
    when it lets go of the image. ``attach`` of an image that is still in use raises ``OSError``, and so does one of an
    image that cannot be mounted. What a crash left in its journal is taken care of by the kernel;
  * nothing in the image gives rights or is a device (nosuid, nodev), and what is deleted in it is given back to the
    host (discard). After an error of the disk beneath it is read-only until it is mounted again.

Standard library only, and of that only what starts fast: every wake of a pod loads this file.
"""

from __future__ import annotations

import errno
import fcntl
import os

from environments.compute.engine import libc

KIND = b"ext4"
OPTIONS = b"discard,errors=remount-ro,noinit_itable"
MS_NOSUID, MS_NODEV, MS_NOATIME = 0x2, 0x4, 0x400
LOOP_SET_FD, LOOP_SET_STATUS64, LOOP_CONFIGURE, LOOP_CTL_GET_FREE = 0x4C00, 0x4C04, 0x4C0A, 0x4C82
# Without direct I/O the host would keep every page of the image twice and count both as the pod's memory.
LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 4, 16
INFO_SIZE, INFO_FLAGS = 232, 52
"""Size of ``struct loop_info64``, and where its flags are."""
INFO_AT, CONFIG_SIZE = 8, 304
"""Where the info begins in ``struct loop_config``, and the size of that."""
TRIES = 64


def attach(image: str, folder: str) -> None:
    """Mount the file system in ``image`` over ``folder``; raises ``OSError``, whose text is for people."""
    handle = lock(image)
    try:
        device, path = _loop_device(handle)
        try:
            _mount(path, folder)
        finally:
            os.close(device)  # the mount holds it from here on; without one it is free again
    finally:
        os.close(handle)


def lock(image: str) -> int:
    """A handle that keeps everybody else from ``image`` until no process and no loop device has it any more.

    Raises ``OSError`` when somebody else does.
    """
    handle = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OSError(errno.EBUSY, "the volume's disk image is still in use by an earlier pod") from None
    return handle


def in_use(image: str) -> bool:
    """Whether ``lock`` would fail; an image that does not exist is not in use."""
    try:
        os.close(lock(image))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return True
    return False


# ------------------------------------------------------------------------------------------------------ loop device


def _loop_device(image: int) -> tuple[int, str]:
    """A loop device over the handle ``image``: a handle, which keeps it until it is closed, and its path."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if _configure(device, image):
                return device, path
            os.close(device)
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def _configure(device: int, image: int) -> bool:
    """Give the device its image; ``False`` when somebody else was faster."""
    config = bytearray(CONFIG_SIZE)
    config[:4] = image.to_bytes(4, "little")
    config[INFO_AT : INFO_AT + INFO_SIZE] = _info(LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO)
    try:
        fcntl.ioctl(device, LOOP_CONFIGURE, bytes(config))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        if error.errno not in (errno.EINVAL, errno.ENOTTY):
            raise
        return _configure_in_two_steps(device, image)
    return True


def _configure_in_two_steps(device: int, image: int) -> bool:
    """The same for a kernel before 5.8."""
    try:
        fcntl.ioctl(device, LOOP_SET_FD, image)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    fcntl.ioctl(device, LOOP_SET_STATUS64, _info(LO_FLAGS_AUTOCLEAR))
    return True


def _info(flags: int) -> bytes:
    info = bytearray(INFO_SIZE)
    info[INFO_FLAGS : INFO_FLAGS + 4] = flags.to_bytes(4, "little")
    return bytes(info)


# ------------------------------------------------------------------------------------------------------ file system


def _mount(device: str, folder: str) -> None:
    arguments = (device.encode(), os.fsencode(folder), KIND, MS_NOSUID | MS_NODEV | MS_NOATIME, OPTIONS)
    try:
        libc.call("mount", *arguments)
    except OSError:
        _mount_or_say_why(arguments)


def _mount_or_say_why(arguments: tuple[bytes, bytes, bytes, int, bytes]) -> None:
    """Try again with what is slow to load and knows the kernel's error."""
    import ctypes  # noqa: PLC0415 - 10 ms that only a failure may cost

    if ctypes.CDLL(None, use_errno=True).mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the volume's disk image cannot be mounted ({os.strerror(number)})")
