// The challenge by which two ends of a connection prove to each other that they know the job's
// secret.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/core/secret.h"

namespace lockstep::inline v0::wire {

// Mutual challenge over a connected stream socket: each end sends a nonce and proves the secret by
// HMAC-SHA256 over both nonces, its role and `purpose` (so that a proof for one service is
// worthless at another). Neither end learns anything from a wrong peer. Both ends call it, one in
// each role; the descriptor stays open.
// Throws: StoreError when the peer does not know the secret, says that this end does not, or sends
// anything else, PeerLost when it closed the connection, Timeout at the deadline.
void authenticate_as_server(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline);
void authenticate_as_client(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline);

// The common part of the challenge's two halves: a hello, then a proof, each of a fixed number of
// bytes, which may arrive in pieces.
class ChallengeHalf {
 public:
  // Bytes still missing for the next step; 0 when done.
  size_t wanted() const;
  bool done() const { return step_ == Step::kDone; }

 protected:
  enum class Step { kHello, kProof, kDone };

  ChallengeHalf(const Secret& secret, std::string_view purpose)
      : secret_(secret), purpose_(purpose) {}
  // Keeps at most wanted() bytes; true once the step's bytes are complete.
  // Throws: StoreError as soon as they are not those of Lockstep.
  bool take(std::string_view bytes);
  // The nonce of the received hello; the proof comes next.
  std::string end_hello();
  // The received proof, and whether it is that of `role`.
  Digest end_proof();
  bool is_proof_of(std::string_view role, const Digest& theirs) const;
  std::string proof_of(std::string_view role) const;

  Step step_ = Step::kHello;
  std::string client_nonce_;
  std::string server_nonce_;

 private:
  Secret secret_;
  std::string purpose_;
  std::string received_;
};

// The server's half of the challenge, for servers that must not wait for one client: receive at
// most wanted() bytes and give them to answer() or feed(), until done(). A client may send the
// bytes in pieces; they are kept.
class ServerChallenge : public ChallengeHalf {
 public:
  ServerChallenge(const Secret& secret, std::string_view purpose)
      : ChallengeHalf(secret, purpose) {}

  // Takes at most wanted() bytes; returns the bytes to send now (perhaps none).
  // Throws: StoreError when the client does not know the secret or sends anything else: then close
  // the connection.
  std::string feed(std::string_view bytes);

  // feed(), and sends its result to the client. Only this function has sent anything to the client
  // before, so the empty socket has room for it. A client whose proof is wrong is told so, since a
  // connection that is merely closed may have ended for any reason.
  // Throws: as feed(), and PeerLost when the client is gone.
  void answer(int fd, std::string_view bytes);
};

// The client's half, likewise: send hello() first.
class ClientChallenge : public ChallengeHalf {
 public:
  ClientChallenge(const Secret& secret, std::string_view purpose);

  std::string hello() const;
  // As ServerChallenge::feed().
  // Throws: StoreError when the server does not know the secret or sends anything else.
  std::string feed(std::string_view bytes);
};

}  // namespace lockstep::inline v0::wire
