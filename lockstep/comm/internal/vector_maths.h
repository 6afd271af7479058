// libtorch's vector maths and threads. Not a public header.
#pragma once

namespace lockstep::inline v0 {

// On the CPU, exp, sin, sqrt, tanh and the like go through MKL. Its first call in a process detects
// the processor's abilities, and until that is done, calls on other threads may use a kernel of low
// accuracy: on processors with AVX-512 the same input then gives other bits, once
// (https://github.com/pytorch/pytorch/issues/188792). This function makes the first call alone.
// Call it before threads compute.
// Thread-safety: any thread.
// Cost: cheap after the first call.
void settle_vector_maths();

}  // namespace lockstep::inline v0
