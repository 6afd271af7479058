#include "lockstep/launch/etcd.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/etcd_protocol.h"

#ifdef LOCKSTEP_HAS_CURL
#include <curl/curl.h>
#endif

namespace lockstep::inline v0::launch {
namespace {

using Clock = std::chrono::steady_clock;
using Ask = Election::Request::Kind;
using std::chrono::milliseconds;

// for an etcd that has never answered
constexpr milliseconds kGiveUp(10'000);

}  // namespace

// Local to this file, but named for the compiler.
namespace etcd_client {

// etcd could not be asked.
struct NotReached {
  std::string why;
};
struct Refused {
  std::string why;
};

#ifdef LOCKSTEP_HAS_CURL

constexpr long kConnectMs = 2000, kCallMs = 4000;
constexpr size_t kLongestAnswer = size_t{1} << 20;

// libcurl, loaded at run time. Most jobs do not need it, and start faster without it.
struct Curl {
  Curl() {
    void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw LaunchError(std::string("--rdzv-backend etcd needs libcurl (Debian: libcurl4): ") +
                        ::dlerror());
    const auto load = [library](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr)
        throw LaunchError(std::string("libcurl.so.4 has no ") + name + "; is it another library?");
    };
    load(global_init, "curl_global_init");
    load(init, "curl_easy_init");
    load(setopt, "curl_easy_setopt");
    load(perform, "curl_easy_perform");
    load(getinfo, "curl_easy_getinfo");
    load(cleanup, "curl_easy_cleanup");
    load(append, "curl_slist_append");
    load(free_all, "curl_slist_free_all");
    load(error_text, "curl_easy_strerror");
    if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw LaunchError("libcurl does not start");
  }

  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) init;
  CURLcode (*setopt)(CURL*, CURLoption, ...);
  decltype(&::curl_easy_perform) perform;
  CURLcode (*getinfo)(CURL*, CURLINFO, ...);
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_slist_append) append;
  decltype(&::curl_slist_free_all) free_all;
  decltype(&::curl_easy_strerror) error_text;
};

// Calls block for a few seconds at most.
class Client {
 public:
  Client(const EtcdAccess& access, const std::atomic<bool>& stop)
      : access_(access), stop_(stop), handle_(curl_.init()) {
    if (handle_ == nullptr) throw LaunchError("libcurl does not start");
  }
  ~Client() { curl_.cleanup(handle_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  std::string call(const EtcdCall& call) {
    for (bool again = false;; again = true) {
      if (token_.empty() && !access_.user.empty())
        token_ = read_etcd_token(post(etcd_log_in(access_.user, access_.password)).second);
      const auto [status, answer] = post(call, again || access_.user.empty());
      if (status == 200) return answer;
      token_.clear();
    }
  }

 private:
  // Returns status 200 or, unless `final`, a status that a new login may change.
  std::pair<int, std::string> post(const EtcdCall& call, bool final = true) {
    std::string why;
    size_t distrusted = 0;
    for (size_t i = 0; i < access_.endpoints.size(); ++i) {
      const HostPort& server = access_.endpoints[(at_ + i) % access_.endpoints.size()];
      std::string answer;
      bool trusted = true;
      const int status = post_to(server, call, answer, why, trusted);
      if (!trusted) ++distrusted;
      if (status == 0) continue;
      at_ = (at_ + i) % access_.endpoints.size();
      if (status == 200) return {status, answer};
      const EtcdError error = read_etcd_error(status, answer);
      if (error.token_expired && !final) return {status, ""};
      if (error.refused) throw Refused{error.text};
      throw NotReached{error.text};
    }
    if (distrusted == access_.endpoints.size()) throw Refused{why};
    throw NotReached{why};
  }

  // Returns the status; 0: there is none, and `why` has the reason; without `trusted`, the reason
  // is a certificate, which waiting does not mend.
  int post_to(const HostPort& server, const EtcdCall& call, std::string& answer, std::string& why,
              bool& trusted) {
    const std::string url = (access_.tls ? "https://" : "http://") + server.to_string() + call.path;
    curl_slist* headers = curl_.append(nullptr, "Content-Type: application/json");
    if (!token_.empty()) headers = curl_.append(headers, ("Authorization: " + token_).c_str());
    char text[CURL_ERROR_SIZE] = {};
    const auto set = [this](CURLoption option, auto value) {
      curl_.setopt(handle_, option, value);
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_POSTFIELDS, call.body.c_str());
    set(CURLOPT_POSTFIELDSIZE, static_cast<long>(call.body.size()));
    set(CURLOPT_WRITEFUNCTION, &Client::take);
    set(CURLOPT_WRITEDATA, &answer);
    set(CURLOPT_ERRORBUFFER, text);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROXY, "");
    set(CURLOPT_CONNECTTIMEOUT_MS, kConnectMs);
    set(CURLOPT_TIMEOUT_MS, kCallMs);
    set(CURLOPT_OPENSOCKETFUNCTION, &Client::open_socket);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &Client::go_on);
    set(CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(&stop_));
    if (!access_.ca_cert.empty()) set(CURLOPT_CAINFO, access_.ca_cert.c_str());
    if (!access_.cert.empty()) set(CURLOPT_SSLCERT, access_.cert.c_str());
    if (!access_.key.empty()) set(CURLOPT_SSLKEY, access_.key.c_str());
    const CURLcode code = curl_.perform(handle_);
    curl_.free_all(headers);
    set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
    long status = 0;
    if (code == CURLE_OK) curl_.getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK) why = text[0] != '\0' ? text : curl_.error_text(code);
    trusted = code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE &&
              code != CURLE_SSL_CERTPROBLEM;
    return static_cast<int>(status);
  }

  static size_t take(char* data, size_t size, size_t count, void* answer) {
    auto& text = *static_cast<std::string*>(answer);
    if (text.size() + size * count > kLongestAnswer) return 0;
    text.append(data, size * count);
    return size * count;
  }
  // Ranks are started meanwhile, and must not inherit the socket.
  static curl_socket_t open_socket(void*, curlsocktype, curl_sockaddr* address) {
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  }
  static int go_on(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<const std::atomic<bool>*>(stop)->load() ? 1 : 0;
  }

  const EtcdAccess& access_;
  const std::atomic<bool>& stop_;
  const Curl curl_;
  CURL* handle_;
  size_t at_ = 0;  // the endpoint that answered last
  std::string token_;
};

#else

class Client {
 public:
  Client(const EtcdAccess&, const std::atomic<bool>&) {
    throw LaunchError(
        "this lockstep was built without etcd, for lack of curl/curl.h (Debian: "
        "libcurl4-openssl-dev)");
  }
  std::string call(const EtcdCall&) { return {}; }
};

#endif

}  // namespace etcd_client

class EtcdElection::Worker {
 public:
  Worker(const EtcdAccess& access, const std::string& run_id, milliseconds lease)
      : access_(access),
        keys_(etcd_keys(run_id)),
        lease_seconds_(std::max<int64_t>(2, (lease.count() + 999) / 1000)),
        client_(access_, stop_),
        wake_(make_pipe()),
        thread_([this] { work(); }) {}
  ~Worker() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void ask(const Election::Request& request) {
    {
      MutexLock lock(mutex_);
      request_ = request;
    }
    changed_.notify_all();
  }
  // The descriptor that becomes readable when an answer arrives.
  int fd() const { return wake_.read.get(); }
  std::optional<Election::Answer> take_answer() {
    MutexLock lock(mutex_);
    if (!answer_) return std::nullopt;
    char byte;
    while (::read(wake_.read.get(), &byte, 1) < 0 && errno == EINTR) {
    }
    return std::exchange(answer_, std::nullopt);
  }

 private:
  void work() {
    while (true) {
      Election::Request request;
      {
        MutexLock lock(mutex_);
        while (!request_ && !stop_) changed_.wait(lock);
        if (stop_ && !request_) return;
        request = *std::exchange(request_, std::nullopt);
      }
      Election::Answer answer = answer_to(request);
      MutexLock lock(mutex_);
      answer_ = std::move(answer);
      while (::write(wake_.write.get(), "", 1) < 0 && errno == EINTR) {
      }
    }
  }

  Election::Answer answer_to(const Election::Request& request) {
    Election::Answer answer;
    try {
      answer = ask_etcd(request);
      answer.reached = true;
    } catch (const etcd_client::NotReached& error) {
      answer.error = error.why;
    } catch (const etcd_client::Refused& error) {
      answer.reached = answer.refused = true;
      answer.error = error.why;
    } catch (const std::exception& error) {
      answer.error = error.what();
    }
    return answer;
  }

  EtcdState state(const EtcdCall& call) { return read_etcd_state(client_.call(call), keys_); }

  Election::Answer ask_etcd(const Election::Request& request) {
    Election::Answer answer;
    switch (request.kind) {
      case Ask::kLook: {
        const EtcdState now = state(etcd_look(keys_));
        answer.leader = now.leader;
        answer.newest = now.generation;
        break;
      }
      case Ask::kCampaign: {
        answer.lease = read_etcd_lease(client_.call(etcd_grant(lease_seconds_)));
        const EtcdState now = state(etcd_campaign(keys_, request.value, answer.lease));
        answer.leader = now.leader;
        answer.newest = now.generation;
        answer.revision = now.leader_revision;
        // Its own key may exist already, from a call whose answer was lost.
        answer.granted = now.leader == request.value;
        if (answer.granted) answer.lease = now.leader_lease;
        break;
      }
      case Ask::kKeepAlive:
        answer.granted = read_etcd_kept_alive(client_.call(etcd_keep_alive(request.lease)));
        break;
      case Ask::kClaim: {
        const EtcdState before = state(etcd_look(keys_));
        EtcdState now = before;
        if (before.leader_revision == request.revision && before.generation < request.generation)
          now = state(
              etcd_claim(keys_, request.generation, request.revision, before.generation_revision));
        answer.newest = now.generation;
        answer.revision = now.leader_revision;
        // Granted the second time if the first answer was lost.
        answer.granted =
            now.generation == request.generation && now.generation_by == request.revision;
        break;
      }
      case Ask::kResign:
        state(etcd_remove(keys_, request.revision));
        client_.call(etcd_revoke(request.lease));
        answer.granted = true;
        break;
    }
    return answer;
  }

  const EtcdAccess access_;
  const EtcdKeys keys_;
  const int64_t lease_seconds_;
  std::atomic<bool> stop_{false};
  etcd_client::Client client_;  // used by the thread
  Pipe wake_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::optional<Election::Request> request_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Election::Answer> answer_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_;  // last, because it uses the others
};

EtcdElection::EtcdElection(const EtcdAccess& access, const std::string& run_id,
                           milliseconds silence, milliseconds join_timeout)
    : election_({.lease = silence, .give_up = std::min(join_timeout, kGiveUp)}, Clock::now()) {
  for (const HostPort& endpoint : access.endpoints)
    name_ += (name_.empty() ? "etcd at " : ", ") + endpoint.to_string();
  for (const std::string& file : {access.ca_cert, access.cert, access.key}) {
    if (!file.empty() && ::access(file.c_str(), R_OK) != 0)
      throw InvalidArgument("--rdzv-conf: '" + file +
                            "' cannot be read: " + system_error("open", errno).what());
  }
  worker_ = std::make_unique<Worker>(access, run_id, silence);
}

EtcdElection::~EtcdElection() = default;

void EtcdElection::ask_and_hear() {
  if (const auto answer = worker_->take_answer()) election_.on_answer(*answer, Clock::now());
  if (const auto request = election_.next(Clock::now())) worker_->ask(*request);
}

void EtcdElection::watch(PollSet& polls) {
  ask_and_hear();
  polls.add(worker_->fd(), POLLIN, [this] { ask_and_hear(); });
  if (election_.next_time() > Clock::now()) polls.wake_at(election_.next_time());
}

}  // namespace lockstep::inline v0::launch
