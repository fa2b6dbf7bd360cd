//! The executable: the allocator, and a call of the library.

/// Threads often free memory that other threads allocated, which mimalloc handles well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    headwater::main()
}
