// What clang's thread-safety analysis is told: which lock guards what. Nothing for other compilers.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html; the build with clang (preset `clang`)
// fails where the code does not keep to it.
#pragma once

#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(x)
#endif

// On a class that is a lock, and on one that holds a lock while it lives.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)
// On a member: touched only with the lock held; what a pointer points to.
#define LOCKSTEP_GUARDED_BY(x) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(x))
#define LOCKSTEP_PT_GUARDED_BY(x) LOCKSTEP_THREAD_ATTRIBUTE(pt_guarded_by(x))
// On a lock: taken before another.
#define LOCKSTEP_ACQUIRED_BEFORE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
// On a function: called with the lock held, or without it; takes it, gives it back.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define LOCKSTEP_TRY_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RETURN_CAPABILITY(x) LOCKSTEP_THREAD_ATTRIBUTE(lock_returned(x))
// On a function that the analysis cannot follow; a comment says why.
#define LOCKSTEP_UNCHECKED LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis)
