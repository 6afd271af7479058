// gRPC for C++ as a contender of `lockstep bench rpc`: what protoc's generated code does, with messages that are bytes
// already, so that nothing is spent on protobuf. On one host it talks over a Unix socket.
//
// The server has callbacks: the thread that receives a call answers it. The synchronous one is as fast for one call at a time,
// but begins a thread for each of many. There is no libtorch in this program, whose own protobuf would clash.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <optional>

#include "lockstep/bench/rpc_work.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::bench {
namespace {

using grpc::ByteBuffer;

constexpr const char* kAdd = "/lockstep.Bench/Add";
constexpr const char* kTake = "/lockstep.Bench/Take";

ByteBuffer bytes_of(const void* data, size_t size) {
  const grpc::Slice slice(data, size);
  return ByteBuffer(&slice, 1);
}

// Copies what a buffer holds, in however many pieces; returns its length.
size_t gather(const ByteBuffer& from, void* to, size_t room) {
  std::vector<grpc::Slice> pieces;
  (void)from.Dump(&pieces);
  size_t at = 0;
  for (const grpc::Slice& piece : pieces) {
    if (at + piece.size() > room) throw Error("gRPC: a message is longer than it should be");
    std::memcpy(static_cast<char*>(to) + at, piece.begin(), piece.size());
    at += piece.size();
  }
  return at;
}

template <typename T>
T value_of(const ByteBuffer& from) {
  T value{};
  if (gather(from, &value, sizeof value) != sizeof value)
    throw Error("gRPC: a message is shorter than it should be");
  return value;
}

class Service final : public grpc::Service {
 public:
  Service() {
    add_method(kAdd, [](const ByteBuffer& request) {
      const auto numbers = value_of<std::array<int64_t, 2>>(request);
      const int64_t sum = numbers[0] + numbers[1];
      return bytes_of(&sum, sizeof sum);
    });
    add_method(kTake, [this](const ByteBuffer& request) {
      // A tensor's memory is in one piece.
      tensor_.resize(request.Length() / sizeof(float));
      gather(request, tensor_.data(), tensor_.size() * sizeof(float));
      const double found = static_cast<double>(tensor_.front()) +
                           static_cast<double>(tensor_[tensor_.size() / 2]) +
                           static_cast<double>(tensor_.back());
      return bytes_of(&found, sizeof found);
    });
  }

 private:
  template <typename F>
  void add_method(const char* name, F answer) {
    AddMethod(
        new grpc::internal::RpcServiceMethod(name, grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    MarkMethodCallback(methods_++, new grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>(
                                       [answer](grpc::CallbackServerContext* context,
                                                const ByteBuffer* request, ByteBuffer* response) {
                                         *response = answer(*request);
                                         grpc::ServerUnaryReactor* reactor =
                                             context->DefaultReactor();
                                         reactor->Finish(grpc::Status::OK);
                                         return reactor;
                                       }));
  }

  int methods_ = 0;
  std::vector<float> tensor_;  // one caller sends tensors
};

class GrpcServer final : public RpcServer {
 public:
  explicit GrpcServer(const RpcEndpoint& place) {
    const bool local = place.listen.empty();
    const std::string name = "unix-abstract:lockstep-bench-grpc-" + std::to_string(::getpid());
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort(local ? name : place.listen + ":0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_) throw Error("gRPC's server does not start");
    address_ = local ? name : place.listen + ":" + std::to_string(port);
  }
  ~GrpcServer() override { server_->Shutdown(); }
  std::string address() const override { return address_; }

 private:
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

void expect_ok(const grpc::Status& status) {
  if (!status.ok()) throw Error("gRPC: " + status.error_message());
}

class GrpcCaller final : public RpcCaller {
 public:
  GrpcCaller(const RpcEndpoint&, const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxSendMessageSize(-1);
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    if (!channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30)))
      throw Timeout("gRPC does not reach its server at " + address);
    add_.emplace(kAdd, grpc::internal::RpcMethod::NORMAL_RPC, channel_);
    take_.emplace(kTake, grpc::internal::RpcMethod::NORMAL_RPC, channel_);
    stub_.emplace(channel_);
  }

  int64_t add(int64_t a, int64_t b) override {
    return value_of<int64_t>(call(*add_, numbers(a, b)));
  }

  int64_t add_many(int64_t first, int64_t n) override {
    struct Call {
      grpc::ClientContext context;
      ByteBuffer response;
      grpc::Status status;
      std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    };
    std::deque<Call> calls(static_cast<size_t>(n));
    grpc::CompletionQueue queue;
    for (int64_t i = 0; i < n; ++i) {
      Call& one = calls[static_cast<size_t>(i)];
      one.reader = stub_->PrepareUnaryCall(&one.context, kAdd, numbers(first + i, 1), &queue);
      one.reader->StartCall();
      one.reader->Finish(&one.response, &one.status, &one);
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue.Next(&tag, &ok) || !ok) throw Error("gRPC: a call in flight was not answered");
      const Call& one = *static_cast<Call*>(tag);
      expect_ok(one.status);
      sum += value_of<int64_t>(one.response);
    }
    queue.Shutdown();
    return sum;
  }

  void prepare(int64_t elements) override { tensor_.resize(static_cast<size_t>(elements)); }
  void fill(float value) override { std::fill(tensor_.begin(), tensor_.end(), value); }
  double send() override {
    // Sent from where it lies.
    const grpc::Slice slice(tensor_.data(), tensor_.size() * sizeof(float),
                            grpc::Slice::STATIC_SLICE);
    return value_of<double>(call(*take_, ByteBuffer(&slice, 1)));
  }

 private:
  static ByteBuffer numbers(int64_t a, int64_t b) {
    const std::array<int64_t, 2> both{a, b};
    return bytes_of(both.data(), sizeof both);
  }
  ByteBuffer call(const grpc::internal::RpcMethod& method, const ByteBuffer& request) {
    grpc::ClientContext context;
    ByteBuffer response;
    expect_ok(grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer>(
        channel_.get(), method, &context, request, &response));
    return response;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::optional<grpc::internal::RpcMethod> add_, take_;
  std::optional<grpc::GenericStub> stub_;
  std::vector<float> tensor_;
};

}  // namespace
}  // namespace lockstep::inline v0::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  return run_rpc_process(
      {argv + 1, argv + argc},
      {.serve = [](const RpcEndpoint& place) { return std::make_unique<GrpcServer>(place); },
       .connect =
           [](const RpcEndpoint& place, const std::string& address) {
             return std::make_unique<GrpcCaller>(place, address);
           }});
}
