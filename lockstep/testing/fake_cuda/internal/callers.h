// Which functions of the program have called: found quickly, named slowly. Not a public header.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0::testing::fake {

// Where the calling thread will return to in the program itself, without its libraries, from the
// inside out, behind the innermost library; what is left over becomes nullptr.
void find_callers(std::span<void*> callers);

// Names them all at once, for what asks for each of them then. Takes some tenths of a second.
void look_up(const std::vector<void*>& callers);

// "train_step at train.cpp:12" of the first `most` that are no wrappers of a library's headers; by
// addr2line, or addresses where there is none.
std::vector<std::string> name_callers(std::span<void* const> callers, size_t most);

}  // namespace lockstep::inline v0::testing::fake
