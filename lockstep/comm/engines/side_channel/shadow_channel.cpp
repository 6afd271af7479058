#include "lockstep/comm/engines/side_channel/shadow_channel.h"

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0::side_channel {
namespace {

constexpr size_t kShadowDepth = 32;  // collectives shown but not yet agreed
// How long a rank waits before it writes its place to the store and reads the others' reports.
constexpr auto kShadowPatience = std::chrono::milliseconds(50);
constexpr auto kShadowLook = std::chrono::milliseconds(100);   // between two looks
constexpr auto kShadowTalk = std::chrono::milliseconds(1500);  // for all ranks to report their call
constexpr auto kShadowAnswer = std::chrono::milliseconds(500);  // for the store, after a failure

std::string to_bytes(const CallRecord& record) {
  return {reinterpret_cast<const char*>(&record), sizeof record};
}

std::optional<CallRecord> from_bytes(const std::string& bytes) {
  CallRecord record;
  if (bytes.size() != sizeof record) return std::nullopt;
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

// The number of a collective and its record, as a rank leaves them in the store, and how often it
// has reported a wait.
struct Place {
  uint64_t number = 0;
  uint64_t waits = 0;
  CallRecord record;
};

// Talks to the store on a thread of its own, so that no rank waits for a store whose host is gone.
// The thread starts with the first request and ends by itself.
class StoreThread {
 public:
  using Errand = std::function<void(Store&)>;

  explicit StoreThread(std::shared_ptr<Store> store) : shared_(std::make_shared<Shared>()) {
    shared_->store = std::move(store);
  }
  ~StoreThread() {
    const MutexLock lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
  }
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // The result or exception of `ask`, once the store has answered.
  template <typename Ask>
  auto send(Ask ask) -> std::future<decltype(ask(std::declval<Store&>()))> {
    auto task = std::make_shared<std::packaged_task<decltype(ask(std::declval<Store&>()))(Store&)>>(
        std::move(ask));
    auto answer = task->get_future();
    const MutexLock lock(shared_->mutex);
    shared_->errands.push_back([task](Store& store) { (*task)(store); });
    shared_->changed.notify_all();
    if (!started_) std::thread([shared = shared_] { run(*shared); }).detach();
    started_ = true;
    return answer;
  }

 private:
  // Outlives the thread while an answer is awaited.
  struct Shared {
    std::shared_ptr<Store> store;
    Mutex mutex;
    ConditionVariable changed;
    std::deque<Errand> errands LOCKSTEP_GUARDED_BY(mutex);
    bool stop LOCKSTEP_GUARDED_BY(mutex) = false;
  };

  static void run(Shared& shared) {
    MutexLock lock(shared.mutex);
    while (true) {
      while (!shared.stop && shared.errands.empty()) shared.changed.wait(lock);
      if (shared.errands.empty()) return;
      const Errand errand = std::move(shared.errands.front());
      shared.errands.pop_front();
      lock.unlock();
      errand(*shared.store);
      lock.lock();
    }
  }

  std::shared_ptr<Shared> shared_;
  bool started_ = false;
};

// The other ranks' reports in the store.
struct PeerReports {
  std::optional<std::string> failure;
  std::vector<std::optional<Place>> places;  // by rank
};

class ShadowChannel final : public SideChannel {
 public:
  ShadowChannel(std::unique_ptr<Backend> shadow, std::shared_ptr<Store> store, int rank, int size)
      : shadow_(std::move(shadow)),
        store_thread_(std::move(store)),
        rank_(rank),
        size_(size),
        places_(static_cast<size_t>(size)),
        heard_(static_cast<size_t>(size)) {}

  bool publish(uint64_t number, const CallRecord& record) override {
    if (shown_.size() >= kShadowDepth) return false;
    auto shown = std::make_unique<Shown>();
    shown->place = {number, 0, record};
    shown->since = Clock::now();
    // The maxima of x and of ~x belong to one x only if all ranks gave the same value.
    const auto mark =
        static_cast<int64_t>(record.fingerprint ^ (record.sequence * 0x9e3779b97f4a7c15ULL));
    shown->sent = {mark, ~mark};
    Call call;
    call.op = Op::kAllReduce;
    call.dtype = at::kLong;
    call.reduce = ReduceOp::kMax;
    call.count = 2;
    call.input = call.output = reinterpret_cast<std::byte*>(shown->sent.data());
    call.sequence = number;
    shown->request = shadow_->start(call);
    last_ = shown->place;
    shown_.push_back(std::move(shown));
    return true;
  }

  bool agreed(uint64_t number) override {
    if (number <= agreed_) return true;
    if (shadow_late_) return false;
    Shown& front = *shown_.front();
    try {
      if (!front.request->poll()) return false;
    } catch (const Timeout&) {
      // The shadow's own clock, which may be a little ahead of the wait's: that one knows who is
      // late.
      shadow_late_ = true;
      return false;
    } catch (const PeerLost&) {
      // The rank that gave up has reported why, or is about to.
      const Deadline deadline = Deadline::after(kShadowTalk / 3);
      while (!deadline.expired()) {
        request_reports();
        read_reports(deadline);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      throw;
    }
    if (front.sent[0] != ~front.sent[1]) report_mismatch(front.place);
    shown_.pop_front();
    agreed_ = number;
    return true;
  }

  void finished(uint64_t) override {}

  void waiting() override { ++waits_; }

  void check_failed() override {
    const auto now = Clock::now();
    if (now - looked_ < kShadowLook) return;
    if (!shown_.empty() && now - shown_.front()->since < kShadowPatience) return;
    looked_ = now;
    request_reports();
    read_reports(Deadline::after(std::chrono::nanoseconds(0)));
  }

  std::vector<int> missing(uint64_t number) const override {
    std::vector<int> ranks;
    if (number <= agreed_) return ranks;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const std::optional<Place> place = place_of(r);
      if (!place || place->number < number) ranks.push_back(r);
    }
    return ranks;
  }

  // Measured by this rank's clock, since its last report from the other ranks.
  std::vector<int> silent(uint64_t number, Deadline::Duration silence) const override {
    const auto since = Clock::now() - silence;
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r) {
      const std::optional<Place> place = place_of(r);
      const bool beyond = place && place->number > number;
      if (r != rank_ && !beyond && heard_[static_cast<size_t>(r)] <= since) ranks.push_back(r);
    }
    return ranks;
  }

  int lost_before(uint64_t, bool) const override { return -1; }

  // A rank that never had to wait left nothing in the store; its calls up to agreed_ equalled this
  // rank's.
  std::string whereabouts(int rank) const override {
    const std::optional<Place> place = place_of(rank);
    std::string text = "rank " + std::to_string(rank);
    if (place && place->number > agreed_) return text + ", which is in " + numbered(place->record);
    if (agreed_ == 0) return text + ", which has called no collective yet";
    return text + ", whose last collective was #" + std::to_string(last_agreed_sequence());
  }

  bool lost(int) const override { return false; }

  void fail(Failure kind, int lost_rank, const std::string& text) noexcept override {
    try {
      const std::string report = std::to_string(static_cast<uint32_t>(kind)) + " " +
                                 std::to_string(rank_) + " " + std::to_string(lost_rank) + " " +
                                 text;
      store_thread_
          // This process may be about to end.
          .send([report](Store& store) { return store.compare_set("failure", "", report); })
          .wait_for(kShadowAnswer);
    } catch (const std::exception&) {  // the store cannot be reached
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  struct Shown {
    Place place;
    Clock::time_point since;
    std::array<int64_t, 2> sent{};
    std::unique_ptr<Request> request;
  };

  static std::string key(const char* what, int rank) {
    return std::string(what) + "/" + std::to_string(rank);
  }

  uint64_t last_agreed_sequence() const {
    // The communicator's numbers may be ahead of the channel's, by the calls that were agreed in
    // another engine.
    return last_.record.sequence - (last_.number - agreed_);
  }

  static std::optional<Place> read_place(Store& store, int rank) {
    const auto text = store.try_get(key("at", rank));
    if (!text) return std::nullopt;
    const size_t colon = text->find(':');
    const size_t second = colon == std::string::npos ? colon : text->find(':', colon + 1);
    if (second == std::string::npos) return std::nullopt;
    const auto number = parse_int(text->substr(0, colon), 1);
    const auto waits = parse_int(text->substr(colon + 1, second - colon - 1), 0);
    const auto record = from_bytes(text->substr(second + 1));
    if (!number || !waits || !record) return std::nullopt;
    return Place{static_cast<uint64_t>(*number), static_cast<uint64_t>(*waits), *record};
  }

  std::optional<Place> place_of(int rank) const { return places_[static_cast<size_t>(rank)]; }

  // Reports this rank's place and requests the others' reports, unless an answer is still pending.
  void request_reports() {
    if (reports_.valid()) return;
    std::string mine;
    if (last_.number != said_.number || waits_ != said_.waits)
      mine = std::to_string(last_.number) + ":" + std::to_string(waits_) + ":" +
             to_bytes(last_.record);
    said_.number = last_.number;
    said_.waits = waits_;
    reports_ = store_thread_.send([mine, rank = rank_, size = size_](Store& store) {
      if (!mine.empty()) store.set(key("at", rank), mine);
      PeerReports reports;
      reports.failure = store.try_get("failure");
      for (int r = 0; r < size; ++r)
        reports.places.push_back(r == rank ? std::nullopt : read_place(store, r));
      return reports;
    });
  }

  // Takes the answer if there is one before the deadline. Throws a failure that a rank reported.
  void read_reports(Deadline deadline) {
    if (!reports_.valid() || reports_.wait_for(deadline.remaining()) != std::future_status::ready)
      return;
    PeerReports reports;
    try {
      reports = reports_.get();
    } catch (const Error&) {  // without the store the engine's own errors have to suffice
      return;
    }
    for (size_t r = 0; r < places_.size(); ++r) {
      if (reports.places[r] && (!places_[r] || places_[r]->waits != reports.places[r]->waits))
        heard_[r] = Clock::now();
    }
    places_ = std::move(reports.places);
    if (reports.failure) throw_reported(*reports.failure);
  }

  void throw_reported(const std::string& text) const {
    std::array<int64_t, 3> numbers{};  // kind, rank, lost rank
    size_t at = 0;
    for (int64_t& number : numbers) {
      const size_t space = text.find(' ', at);
      if (space == std::string::npos) return;
      number = parse_int(text.substr(at, space - at)).value_or(-1);
      at = space + 1;
    }
    const std::string reason = text.substr(at);
    const Failure kind = failure_of(numbers[0]).value_or(Failure::kOther);
    throw_failure(
        kind, blamed_rank(kind, static_cast<int>(numbers[1]), static_cast<int>(numbers[2])),
        numbers[1] == rank_ ? reason
                            : "rank " + std::to_string(numbers[1]) + " reported: " + reason);
  }

  // All ranks reach this with the same two maxima.
  [[noreturn]] void report_mismatch(const Place& place) {
    auto answer = store_thread_.send([place, rank = rank_, size = size_](Store& store) {
      const Deadline deadline = Deadline::after(kShadowTalk);
      store.set(key("call", rank), to_bytes(place.record));
      std::vector<CallRecord> all(static_cast<size_t>(size));
      for (int r = 0; r < size; ++r) {
        try {
          all[static_cast<size_t>(r)] =
              from_bytes(store.get(key("call", r), deadline)).value_or(CallRecord());
        } catch (const Timeout&) {  // it is shown as #0
        }
      }
      // The store may be rank 0's: it stays until all ranks have read, or the time is up.
      try {
        store.set(key("read", rank), "1");
        for (int r = 0; r < size; ++r) store.get(key("read", r), deadline);
      } catch (const Error&) {
      }
      return all;
    });
    std::vector<CallRecord> records(static_cast<size_t>(size_));
    records[static_cast<size_t>(rank_)] = place.record;
    if (answer.wait_for(kShadowTalk + kShadowAnswer) == std::future_status::ready) {
      try {
        records = answer.get();
      } catch (const Error&) {  // the other ranks are shown as #0
      }
    }
    const std::string text = mismatch_text(records);
    fail(Failure::kMismatch, -1, text);
    throw Mismatch(text);
  }

  // In order, not yet agreed. It outlives shadow_, which may still write into the sent memory.
  std::deque<std::unique_ptr<Shown>> shown_;
  std::unique_ptr<Backend> shadow_;
  StoreThread store_thread_;
  int rank_;
  int size_;
  std::vector<std::optional<Place>> places_;  // the other ranks' places, by rank, as last reported
  std::future<PeerReports> reports_;          // a requested report
  Place last_;                                // the last place shown
  bool shadow_late_ = false;                  // the shadow has given up
  uint64_t agreed_ = 0;
  uint64_t waits_ = 0;
  Place said_;                            // the number and waits that this rank left in the store
  std::vector<Clock::time_point> heard_;  // by rank: when its saying that it waits was reports
  Clock::time_point looked_;
};

}  // namespace

std::unique_ptr<SideChannel> make_shadow_channel(std::unique_ptr<Backend> shadow,
                                                 std::shared_ptr<Store> store, int rank, int size) {
  return std::make_unique<ShadowChannel>(std::move(shadow), std::move(store), rank, size);
}

}  // namespace lockstep::inline v0::side_channel
