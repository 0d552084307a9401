//! pause: the process that holds a pod's namespaces open.
//!
//! Not part of any crate: `build.rs` compiles it alone, for the agent's own target, into a static
//! program of a few kilobytes without a runtime. As PID 1 it waits for signals and does two things:
//! it reaps every child that ended (with a shared PID namespace it inherits all orphans of the pod),
//! and it ends at once on SIGTERM or SIGINT.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

const SIGINT: usize = 2;
const SIGTERM: usize = 15;
const SIGCHLD: usize = 17;
/// The signals waited for, as the kernel's bit set: signal n is bit n - 1.
const WAITED: u64 = 1 << (SIGINT - 1) | 1 << (SIGTERM - 1) | 1 << (SIGCHLD - 1);
/// Size of the kernel's signal set in bytes.
const SET_BYTES: usize = 8;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const WAIT4: usize = 61;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const WAIT4: usize = 260;
    pub const EXIT_GROUP: usize = 94;
}

// The kernel enters here with nothing but a stack; Rust wants it aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {run}", run = sym run);

#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "bl {run}", run = sym run);

/// A system call with four arguments; the kernel's answer, negative for an error.
#[cfg(target_arch = "x86_64")]
fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let answer: isize;
    // SAFETY: the callers pass the arguments that the call of this number takes; `syscall` clobbers
    // rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") a, in("rsi") b,
             in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// A system call with four arguments; the kernel's answer, negative for an error.
#[cfg(target_arch = "aarch64")]
fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let answer: isize;
    // SAFETY: the callers pass the arguments that the call of this number takes.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => answer, in("x1") b,
             in("x2") c, in("x3") d, options(nostack));
    }
    answer
}

extern "C" fn run() -> ! {
    let waited = WAITED;
    let set = &raw const waited as usize;
    // Blocked signals are kept for the wait below, also those that PID 1 would otherwise ignore.
    syscall(number::RT_SIGPROCMASK, SIG_BLOCK, set, 0, SET_BYTES);
    loop {
        // Children may have ended before the first wait, and one SIGCHLD stands for many.
        while syscall(number::WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {}
        let signal = syscall(number::RT_SIGTIMEDWAIT, set, 0, 0, SET_BYTES);
        if signal == SIGTERM as isize || signal == SIGINT as isize {
            exit(0);
        }
    }
}

fn exit(code: usize) -> ! {
    loop {
        syscall(number::EXIT_GROUP, code, 0, 0, 0);
    }
}

#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(70)
}
