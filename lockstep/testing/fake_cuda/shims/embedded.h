// The libraries that FakeCuda puts in the place of NCCL and the CUDA runtime, as bytes. Not a
// public header.
#pragma once

#include <string_view>

namespace lockstep::inline v0::testing::fake {

std::string_view nccl_file();
std::string_view cudart_file();

}  // namespace lockstep::inline v0::testing::fake
