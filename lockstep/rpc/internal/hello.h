// The beginning of a link: both ends prove the job's secret, say who they are and find out whether they can read each
// other's memory. Not a public header.
//
//   connecting end                          accepting end
//   challenge                         <->   challenge
//   hello                              ->
//                                     <-    hello, with "reads": it reads the other's memory
//   ready: it reads the other's memory ->
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/process_read.h"
#include "lockstep/rpc/internal/transport.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::rpc::internal {

inline constexpr std::string_view kPurpose = "rpc";

// What an end says of itself.
struct Hello {
  Peer peer;
  std::string host_identity;
  Proof proof;
  bool reads = false;  // the accepting end's answer

  std::string encode() const;
  // Throws BadFrame.
  static Hello decode(std::string_view body);
};
inline constexpr size_t kMostHello = 4096;

std::string hello_frame(const Hello& hello);
std::string ready_frame(bool reads);

// What both ends know then.
struct Introduction {
  Hello other;
  bool this_end_reads = false;
  bool other_end_reads = false;
};

// Before and after the challenge, over a connected socket. Throw Timeout, PeerLost (rank -1), StoreError (another secret),
// BadFrame.
void prove(int fd, const Secret& secret, Deadline deadline);
Introduction introduce(int fd, const Hello& self, Deadline deadline);

// The accepting end, which must not wait: reads what is there. Until it is through, who connected is a stranger, and has
// no more than a few KiB of memory.
class Stranger {
 public:
  Stranger(UniqueFd fd, const Secret& secret, Hello self);

  int fd() const { return fd_.get(); }
  // True: through; what is known is in introduction(). Throws StoreError, BadFrame, PeerLost, SystemError: of no use.
  bool advance();
  const Introduction& introduction() const { return introduction_; }
  UniqueFd release() { return std::move(fd_); }
  // Whether it has proved the secret.
  bool proved() const { return challenge_.done(); }

 private:
  bool read_up_to(size_t bytes);
  void send(std::string_view bytes) const;

  UniqueFd fd_;
  wire::ServerChallenge challenge_;
  Hello self_;
  Introduction introduction_;
  std::string buffer_;
};

}  // namespace lockstep::rpc::internal
