// The spare's own side: a process that lockstep run --spare-ranks has started before a rank needs
// it.
#pragma once

namespace lockstep::inline v0::launch {

// In a spare: waits, without a deadline, until the agent makes this process a rank, and then puts
// the rank's variables into the environment and all threads onto the rank's processors. Where the
// job ends instead, or the agent dies, the process ends here, by _exit(0). It does nothing in any
// other process, nor in a spare that has become a rank.
//
// init() calls it first, as do job_environment(), job_role() and job_store(): a spare has already
// done what the program does before that. The environment changes while other threads may read it
// (setenv(3)): a program that has threads by then must let them read it after this call.
// Throws: InvalidArgument where the environment names a descriptor that this process does not have.
// Thread-safety: one thread at a time.
void wait_if_spare();

}  // namespace lockstep::inline v0::launch
