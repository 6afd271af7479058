// See ../context.h.
#pragma once

namespace gloo::transport {
class Device;
// Defined only so that std::unique_ptr of it can be destroyed in inline code that Lockstep never
// runs.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace gloo::transport
