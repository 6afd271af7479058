// The beginning of a link: both ends prove the job's secret, tell their identity and find out
// whether they can read each other's memory. Not a public header.
//
//   connecting end                               accepting end
//   challenge                              <->   challenge
//   hello: its identity, its word          ->
//                                          <-    hello: its identity, its word;
//                                                where it has put the other's word
//   ready: where it has put the other's
//          word, and whether it reads
//          the other's memory              ->
//                                          <-    ready: whether it reads the other's memory
//
// A process that knows the secret may still lie. Its claims about itself are therefore used in
// messages only, and the process whose memory is read is the kernel's: the one at the other end of
// a Unix socket; between hosts no memory is read. In addition, that process must have put a fresh
// random word of the reader's at the place that its other end names. A number that means another
// process here (in another PID namespace, after a death) is thus detected at each reading
// (core/process_memory.h). Earlier words are of no use to any process, since each end makes its own
// word for each connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/process_read.h"
#include "lockstep/rpc/peer.h"
#include "lockstep/wire/listener.h"

namespace lockstep::inline v0::rpc::internal {

inline constexpr std::string_view kPurpose = "rpc";

// Throws InvalidArgument unless it has 1 to 200 printable ASCII characters.
void check_name(const std::string& name);

// An end's statement about itself.
struct Hello {
  Peer peer;
  std::string host_identity;
  uint64_t word = 0;     // the other end must write it somewhere into its memory
  uint64_t address = 0;  // where the accepting end has put the other's word; 0: nowhere

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

// The result of the introduction at one end.
struct Introduction {
  Hello other;
  bool this_end_reads = false;  // the memory below
  bool other_end_reads = false;
  OtherProcess process;
  Proof proof;
  // The other's word; stays at its address as long as the link lives.
  std::unique_ptr<uint64_t> shown;
};

// Before and after the challenge, over a connected socket. Throw Timeout, PeerLost (rank -1),
// StoreError (another secret), BadFrame.
void prove(int fd, const Secret& secret, Deadline deadline);
Introduction introduce(int fd, Hello self, Deadline deadline);

// The accepting end, after the challenge. Once it is complete, the other end waits for
// ready_frame(). Throws BadFrame, PeerLost, SystemError.
class Newcomer final : public wire::Greeting {
 public:
  Newcomer(int fd, Hello self);
  bool advance() override;
  Introduction& introduction() { return introduction_; }

 private:
  bool read_up_to(size_t bytes);
  bool read_frame(MessageKind kind, size_t most);
  void send(std::string_view bytes) const;

  const int fd_;
  Hello self_;
  Introduction introduction_;
  bool met_ = false;  // hellos were exchanged
  std::string buffer_;
};

}  // namespace lockstep::inline v0::rpc::internal
