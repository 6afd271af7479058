// Annotations for clang's thread-safety analysis: which lock guards what. Empty for other
// compilers. https://clang.llvm.org/docs/ThreadSafetyAnalysis.html; the build with clang (preset
// `clang`) fails where the code violates them.
#pragma once

#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
// An attribute that clang knows; nothing for other compilers.
#define LOCKSTEP_THREAD_ATTRIBUTE(x)
#endif

// For a class that is a lock, and for one that holds a lock during its lifetime.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)
// For a member: accessed only with the lock held; for the target of a pointer.
#define LOCKSTEP_GUARDED_BY(x) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(x))
#define LOCKSTEP_PT_GUARDED_BY(x) LOCKSTEP_THREAD_ATTRIBUTE(pt_guarded_by(x))
// For a lock: acquired before another.
#define LOCKSTEP_ACQUIRED_BEFORE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
// For a function: called with or without the lock held; acquires it, releases it.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define LOCKSTEP_TRY_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RETURN_CAPABILITY(x) LOCKSTEP_THREAD_ATTRIBUTE(lock_returned(x))
// For a function that the analysis cannot follow; a comment says why.
#define LOCKSTEP_UNCHECKED LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis)
