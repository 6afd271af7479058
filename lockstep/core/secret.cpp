#include "lockstep/core/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

constexpr size_t kNonceSize = 32;
constexpr std::string_view kMagic =
    "LKSTP1\r\n";  // first bytes of either side; the version is part of them

constexpr const char* kSecretAdvice =
    "; every rank needs the same LOCKSTEP_SECRET (or LOCKSTEP_SECRET_FILE)";

std::string read_secret_fd(int fd, const std::string& what) {
  std::string text(4096, '\0');
  ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  if (n < 0)
    throw InvalidArgument(what + " cannot be read: " + system_error("pread", errno).what());
  text.resize(static_cast<size_t>(n));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) throw InvalidArgument(what + " is empty: it must hold the job's secret");
  return text;
}

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

// `start` holds the first bytes that arrived, perhaps not yet all of the magic.
void check_magic(std::string_view start) {
  if (!kMagic.starts_with(start)) {
    throw StoreError(
        "the peer does not speak Lockstep's protocol (is another service on this port?)");
  }
}

}  // namespace

Secret Secret::generate() {
  return Secret(to_hex(random_bytes(32)));
}

Secret Secret::from_text(std::string_view text) {
  if (text.empty())
    throw InvalidArgument("the job's secret is empty; give it at least one character");
  return Secret(std::string(text));
}

std::optional<Secret> Secret::from_env(const EnvLookup& env) {
  if (const auto fd = env_int(env, "LOCKSTEP_SECRET_FD", 0, 1 << 20)) {
    return Secret(
        read_secret_fd(static_cast<int>(*fd), "LOCKSTEP_SECRET_FD=" + std::to_string(*fd)));
  }
  if (const auto path = env("LOCKSTEP_SECRET_FILE")) {
    UniqueFd file(::open(path->c_str(), O_RDONLY | O_CLOEXEC));
    const std::string what = "LOCKSTEP_SECRET_FILE=" + *path;
    if (!file) throw InvalidArgument(system_error(what + " cannot be opened", errno).what());
    struct stat info{};
    if (::fstat(file.get(), &info) != 0) throw system_error("fstat " + *path, errno);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
      throw InvalidArgument(what + " can be read by others than its owner; run: chmod 600 " +
                            *path);
    }
    return Secret(read_secret_fd(file.get(), what));
  }
  if (const auto text = env("LOCKSTEP_SECRET")) return from_text(*text);
  return std::nullopt;
}

Digest sha256(std::string_view data) {
  Digest digest;
  unsigned int size = 0;
  const int ok = EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr);
  LOCKSTEP_CHECK(ok == 1 && size == digest.size(), "OpenSSL has SHA-256");
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view data) {
  Digest digest;
  unsigned int size = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &size);
  LOCKSTEP_CHECK(result != nullptr && size == digest.size(), "OpenSSL has HMAC-SHA-256");
  return digest;
}

bool equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1) {
    throw Error("the system's random generator failed; a job's secret cannot be made");
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

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

bool ChallengeHalf::end_proof(std::string_view role) {
  Digest theirs;
  std::copy(received_.begin(), received_.end(), theirs.begin());
  if (!equal(theirs, proof(secret_, role, purpose_, server_nonce_, client_nonce_))) return false;
  step_ = Step::kDone;
  received_.clear();
  return true;
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
  if (!end_proof("client")) throw StoreError("a client with another secret was refused");
  return proof_of("server");
}

void authenticate_as_server(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline) {
  ServerChallenge challenge(secret, purpose);
  while (!challenge.done()) {
    std::string bytes(challenge.wanted(), '\0');
    read_exact(fd, bytes.data(), bytes.size(), deadline);
    const std::string answer = challenge.feed(bytes);
    write_exact(fd, answer.data(), answer.size(), deadline);
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
  if (!end_proof("server")) {
    throw StoreError(std::string("the server does not know this job's secret") + kSecretAdvice);
  }
  return "";
}

void authenticate_as_client(int fd, const Secret& secret, std::string_view purpose,
                            Deadline deadline) {
  ClientChallenge challenge(secret, purpose);
  std::string message = challenge.hello();
  bool proved = false;
  while (true) {
    try {
      write_exact(fd, message.data(), message.size(), deadline);
      if (challenge.done()) return;
      std::string bytes(proved ? challenge.wanted() : std::min(challenge.wanted(), kMagic.size()),
                        '\0');
      read_exact(fd, bytes.data(), bytes.size(), deadline);
      message = challenge.feed(bytes);
      proved |= !message.empty();
    } catch (const PeerLost&) {
      if (!proved) throw;
      throw StoreError(std::string("the server refused this process's secret") + kSecretAdvice);
    }
  }
}

}  // namespace lockstep
