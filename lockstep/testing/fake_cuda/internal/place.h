// Place: where in the program an operation was given to a device. Not a public header.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline v0::testing::fake {

struct Place {
  std::string operation;            // "aten::mul.Tensor"
  std::string where;                // "cuda:0, stream 3"
  std::string node;                 // of the backward that it is part of, or empty
  std::array<void*, 12> callers{};  // in the program itself, from the inside out; nullptr: no more
};

using PlacePtr = std::shared_ptr<const Place>;

// `callers`: whether to look at the stack of the calling thread for them.
PlacePtr make_place(std::string operation, std::string where, std::string node, bool callers);

// "aten::mul.Tensor on cuda:0, stream 3, in MulBackward0, called from main at train.cpp:12".
std::string describe(const Place& place);
// Makes describe() of these quick: the callers of all are looked up at once.
void prepare_to_describe(const std::vector<PlacePtr>& places);

}  // namespace lockstep::inline v0::testing::fake
