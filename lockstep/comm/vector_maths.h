// libtorch's vector maths and threads. Not a public header.
#pragma once

namespace lockstep {

// exp, sin, sqrt, tanh and the like go through MKL on the CPU. Its first call in a process finds
// out what the processor can do, and until it is through, calls on other threads may take a kernel
// of low accuracy: the same input gives other bits, once, on processors with AVX-512
// (https://github.com/pytorch/pytorch/issues/188792). This makes the first call, alone. Before
// threads compute; cheap, any number of times, from any thread.
void settle_vector_maths();

}  // namespace lockstep
