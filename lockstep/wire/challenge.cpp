#include "lockstep/wire/challenge.h"

#include <sys/socket.h>

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {
namespace {

constexpr size_t kNonceSize = 32;
// The first bytes of either side; they contain the version.
constexpr std::string_view kMagic = "LKSTP1\r\n";

// Sent by a server in place of its proof to a client with a wrong proof. It is no possible digest.
constexpr Digest kRefusal{};

constexpr const char* kSecretAdvice =
    "; every rank needs the same LOCKSTEP_SECRET (or LOCKSTEP_SECRET_FILE)";

Digest proof(const Secret& secret, std::string_view role, std::string_view purpose,
             std::string_view server_nonce, std::string_view client_nonce) {
  std::string message(kMagic);
  message.append(role).append(1, '\0').append(purpose).append(1, '\0');
  message.append(server_nonce).append(client_nonce);
  return hmac_sha256(secret.text(), message);
}

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// `start` holds the first bytes that arrived, possibly only a part of the magic.
void check_magic(std::string_view start) {
  if (!kMagic.starts_with(start)) {
    throw StoreError(
        "the peer does not speak Lockstep's protocol (is another service on this port?)");
  }
}

}  // namespace

size_t ChallengeHalf::wanted() const {
  switch (step_) {
    case Step::kHello:
      return kMagic.size() + kNonceSize - received_.size();
    case Step::kProof:
      return sizeof(Digest) - received_.size();
    case Step::kDone:
      break;
  }
  return 0;
}

bool ChallengeHalf::take(std::string_view bytes) {
  LOCKSTEP_CHECK(bytes.size() <= wanted(), "a challenge is fed no more than it wants");
  received_ += bytes;
  if (step_ == Step::kHello) check_magic(std::string_view(received_).substr(0, kMagic.size()));
  return wanted() == 0;
}

std::string ChallengeHalf::end_hello() {
  std::string nonce = received_.substr(kMagic.size());
  received_.clear();
  step_ = Step::kProof;
  return nonce;
}

Digest ChallengeHalf::end_proof() {
  Digest theirs;
  std::copy(received_.begin(), received_.end(), theirs.begin());
  received_.clear();
  return theirs;
}

bool ChallengeHalf::is_proof_of(std::string_view role, const Digest& theirs) const {
  return equal(theirs, proof(secret_, role, purpose_, server_nonce_, client_nonce_));
}

std::string ChallengeHalf::proof_of(std::string_view role) const {
  return std::string(view(proof(secret_, role, purpose_, server_nonce_, client_nonce_)));
}

// The client speaks first, so a server never answers a port scanner that says nothing; the server
// proves itself last, so it reveals a proof only to a client that has already given one.
std::string ServerChallenge::feed(std::string_view bytes) {
  if (!take(bytes)) return "";
  if (step_ == Step::kHello) {
    client_nonce_ = end_hello();
    server_nonce_ = random_bytes(kNonceSize);
    return std::string(kMagic) + server_nonce_;
  }
  if (!is_proof_of("client", end_proof()))
    throw StoreError("a client with another secret was refused");
  step_ = Step::kDone;
  return proof_of("server");
}

void ServerChallenge::answer(int fd, std::string_view bytes) {
  const auto send_all = [fd](std::string_view text) {
    return ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  };
  std::string answer;
  try {
    answer = feed(bytes);
  } catch (const StoreError&) {
    // A lost client cannot be told, and another protocol would not understand it.
    if (step_ == Step::kProof) send_all(view(kRefusal));
    throw;
  }
  if (!answer.empty() && !send_all(answer))
    throw PeerLost("it does not read what it asked for", -1);
}

void authenticate_as_server(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline) {
  ServerChallenge challenge(secret, purpose);
  while (!challenge.done()) {
    std::string bytes(challenge.wanted(), '\0');
    read_exact(fd, bytes.data(), bytes.size(), deadline);
    challenge.answer(fd, bytes);
  }
}

ClientChallenge::ClientChallenge(const Secret& secret, std::string_view purpose)
    : ChallengeHalf(secret, purpose) {
  client_nonce_ = random_bytes(kNonceSize);
}

std::string ClientChallenge::hello() const {
  return std::string(kMagic) + client_nonce_;
}

std::string ClientChallenge::feed(std::string_view bytes) {
  if (!take(bytes)) return "";
  if (step_ == Step::kHello) {
    server_nonce_ = end_hello();
    return proof_of("client");
  }
  const Digest theirs = end_proof();
  if (equal(theirs, kRefusal))
    throw StoreError(std::string("the server refused this process's secret") + kSecretAdvice);
  if (!is_proof_of("server", theirs))
    throw StoreError(std::string("the server does not know this job's secret") + kSecretAdvice);
  step_ = Step::kDone;
  return "";
}

void authenticate_as_client(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline) {
  ClientChallenge challenge(secret, purpose);
  std::string message = challenge.hello();
  bool met = false;
  while (true) {
    write_exact(fd, message.data(), message.size(), deadline);
    if (challenge.done()) return;
    // The first bytes show at once whether the other end uses this protocol.
    std::string bytes(met ? challenge.wanted() : std::min(challenge.wanted(), kMagic.size()), '\0');
    read_exact(fd, bytes.data(), bytes.size(), deadline);
    message = challenge.feed(bytes);
    met |= !message.empty();
  }
}

}  // namespace lockstep::inline v0::wire
