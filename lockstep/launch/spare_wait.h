// The spare's side of being one: a process that lockstep run --spare-ranks has started before a rank needs it.
#pragma once

namespace lockstep::launch {

// In a spare: waits until the agent makes this process a rank, however long that takes, and then puts the rank's
// variables into the environment and all threads onto the rank's processors. Where the job ends instead, or the agent
// dies, the process ends here, by _exit(0). In any other process it does nothing, nor in one that is a rank by now.
//
// init() calls it first, as do job_environment(), job_role() and job_store(): what a program does before is what a spare
// has done when it is needed. The environment changes under the feet of other threads that read it (setenv(3)): a program
// that has some by then lets them read it after this. One thread at a time. Throws InvalidArgument where the environment
// speaks of a descriptor that this process does not have.
void wait_if_spare();

}  // namespace lockstep::launch
