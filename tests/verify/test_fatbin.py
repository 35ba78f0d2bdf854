"""The reader of fat binaries, on the output of NVIDIA's own tools; `fatbins/make` says how it was made."""

import contextlib
import io
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.steps.gpu_code import CUBIN, PTX, GpuCode, read_gpu_code
from tests.support.elves import elf

FATBINS = Path(__file__).parent / "fatbins"
OLD = (FATBINS / "cuda-11.2.fatbin").read_bytes()
LZ4 = (FATBINS / "cuda-12.4-compressed.fatbin").read_bytes()
ZSTD = (FATBINS / "cuda-13.2-compressed.fatbin").read_bytes()


def targets(content: bytes, section: str = ".nv_fatbin") -> list[str]:
    return [code.target for code in read_gpu_code(io.BytesIO(elf({".text": b"code", section: content})))]


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        (OLD, ["compute_80", "sm_70", "sm_80"]),
        (LZ4, ["compute_90", "compute_90a", "sm_80", "sm_90a"]),
        (ZSTD, ["compute_100f", "compute_120", "sm_100f", "sm_103", "sm_80", "sm_90a"]),
    ],
    ids=["11.2", "12.4 compressed", "13.2 compressed"],
)
def test_the_targets_are_those_that_the_tools_were_asked_for(content, inside):
    assert sorted(targets(content)) == inside


def test_capabilities_are_spelt_as_the_tables_spell_them():
    found = read_gpu_code(io.BytesIO(elf({".nv_fatbin": ZSTD})))
    assert GpuCode(CUBIN, "10.0f") in found
    assert GpuCode(PTX, "12.0") in found


def test_a_section_may_hold_many_fat_binaries_with_zeros_between():
    assert targets(OLD + bytes(8) + LZ4 + bytes(24)) == sorted({*targets(OLD), *targets(LZ4)})


def test_relocatable_device_code_is_found():
    assert targets(OLD, "__nv_relfatbin") == targets(OLD)


def test_a_library_without_gpu_code_holds_none():
    assert read_gpu_code(io.BytesIO(elf({".text": OLD}))) == ()


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF\x02\x01\x01"])
def test_what_is_no_elf_file_is_refused(content):
    with pytest.raises(ValueError, match="no ELF file"):
        read_gpu_code(io.BytesIO(content))


def changed(content: bytes, at: int, form: str, value: int) -> bytes:
    return content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"something else entirely", "expected a fat binary"),
        (changed(OLD, 4, "<H", 2), "expected a fat binary"),
        (changed(OLD, 6, "<H", 0), "expected a fat binary"),
        (OLD[:-8], "cut off"),
        (changed(OLD, 16, "<H", 99), "kind 99"),
        (changed(OLD, 20, "<I", 0), "head of an image"),
        (changed(OLD, 24, "<Q", 1 << 62), "head of an image"),
    ],
)
def test_what_is_not_in_the_known_form_is_refused(content, why):
    with pytest.raises(ValueError, match=why):
        targets(content)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, len(LZ4) - 1), value=st.integers(0, 255))
def test_a_damaged_byte_never_crashes_or_hangs_the_reader(at, value):
    damaged = bytearray(LZ4)
    damaged[at] = value
    with contextlib.suppress(ValueError):
        targets(bytes(damaged))
