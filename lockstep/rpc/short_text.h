// ShortText: a name of a function or of a process; most of them need no memory of their own. Not
// for programs.
#pragma once

#include <c10/util/SmallVector.h>

#include <string>
#include <string_view>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::rpc::internal {

class LOCKSTEP_API ShortText {
 public:
  ShortText& operator=(std::string_view text) {
    bytes_.assign(text.begin(), text.end());
    return *this;
  }
  std::string str() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  c10::SmallVector<char, 40> bytes_;
};

}  // namespace lockstep::inline v0::rpc::internal
