// The beginning of a link: both ends prove the job's secret, say who they are and find out whether they can read each
// other's memory. Not a public header.
//
//   connecting end                                          accepting end
//   challenge                                         <->   challenge
//   hello: who it is, its word                         ->
//                                                     <-    hello: who it is, its word; where it has put the other's word
//   ready: where it has put the other's word, and
//          whether it reads the other's memory         ->
//                                                     <-    ready: whether it reads the other's memory
//
// Who knows the secret may still lie. So what an end says of its process is for people alone, and whose memory is read is
// the kernel's word: the process at the other end of a Unix socket. Between hosts nobody's is. Besides, that process must
// have put a fresh random word of the reader's where its other end says: so a number that means another process here (in
// another PID namespace, after a death) is found out, at each reading (core/process_memory.h). What a process has said
// before, to whomever, is of no use to anybody, since each end makes its own word for each connection.
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

// Throws InvalidArgument: not 1 to 200 printable ASCII characters.
void check_name(const std::string& name);

// What an end says of itself.
struct Hello {
  Peer peer;
  std::string host_identity;
  uint64_t word = 0;     // the other end is to put it somewhere into its memory
  uint64_t address = 0;  // where the accepting end has put the other's; 0: nowhere

  std::string encode() const;
  // Throws BadFrame.
  static Hello decode(std::string_view body);
};
inline constexpr size_t kMostHello = 4096;

struct Ready {
  bool reads = false;    // this end reads the other's memory
  uint64_t address = 0;  // where the connecting end has put the other's word; 0: nowhere
};

std::string hello_frame(const Hello& hello);
std::string ready_frame(const Ready& ready);

// What an end knows then.
struct Introduction {
  Hello other;
  bool this_end_reads = false;  // the memory below
  bool other_end_reads = false;
  OtherProcess process;
  Proof proof;
  std::unique_ptr<uint64_t> shown;  // the other's word; stays where it is as long as the link
};

// Before and after the challenge, over a connected socket. Throw Timeout, PeerLost (rank -1), StoreError (another secret),
// BadFrame.
void prove(int fd, const Secret& secret, Deadline deadline);
Introduction introduce(int fd, Hello self, Deadline deadline);

// The accepting end, which must not wait: reads what is there. Until it has proved the secret, who connected is a
// stranger, and has no more than a few KiB of memory.
class Stranger {
 public:
  Stranger(UniqueFd fd, const Secret& secret, Hello self);

  int fd() const { return fd_.get(); }
  // True: through; what is known is in introduction(). The other end waits for ready_frame() then. Throws StoreError,
  // BadFrame, PeerLost, SystemError: of no use.
  bool advance();
  Introduction& introduction() { return introduction_; }
  UniqueFd release() { return std::move(fd_); }
  // Whether it has proved the secret.
  bool proved() const { return challenge_.done(); }

 private:
  bool read_up_to(size_t bytes);
  bool read_frame(MessageKind kind, size_t most);
  void send(std::string_view bytes) const;

  UniqueFd fd_;
  wire::ServerChallenge challenge_;
  Hello self_;
  Introduction introduction_;
  bool met_ = false;  // hellos were said
  std::string buffer_;
};

}  // namespace lockstep::rpc::internal
