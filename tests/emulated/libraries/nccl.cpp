// SPDX-License-Identifier: MIT
// libnccl without a GPU: ranks exchange bytes through files in memory, and what NCCL leaves undefined ends the process.
//
// A launch is one operation, or a group of them. Every rank of a communicator writes the collectives of its n-th launch
// that has any, and the bytes that it sends, into a file; it waits for the files of all others; it compares; it writes
// its outputs. The n-th message between two ranks is a file of its own. Launches happen on the threads of streams, so that their inputs are read and their outputs written when a
// GPU could have done so. Where ranks differ in operation, count, dtype, reduction or root, NCCL would hang or mix up
// data: here every rank ends with a message. A rank that waits too long ends with a message too.
#include <nccl.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "emulator.h"

static const int MISMATCH = 86, HANG = 87, BROKEN = 88;  // exit codes

// ---------------------------------------------------------------- operations

enum Kind { ALL_GATHER, ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECEIVE };
static const char* KIND_NAMES[] = {"AllGather", "AllReduce", "Reduce",  "Broadcast", "ReduceScatter",
                                   "AllToAll",  "Gather",    "Scatter", "Send",      "Recv"};

struct Operation {
  Kind kind;
  const void* input;
  void* output;
  size_t count;
  int dtype;      // ncclDataType_t
  int reduction;  // ncclRedOp_t
  int root;       // or the peer of a send or receive
  size_t offset = 0;    // of a collective's input among the bytes that this rank sends
  uint64_t number = 0;  // of a message between these two ranks, in this direction

  bool is_collective() const { return kind != SEND && kind != RECEIVE; }

  bool fits(const Operation& other) const {
    return kind == other.kind && count == other.count && dtype == other.dtype && reduction == other.reduction &&
           root == other.root;
  }

  std::string text() const {
    char words[160];
    snprintf(words, sizeof words, "%s(count %zu, dtype %d, reduction %d, root or peer %d)", KIND_NAMES[kind], count,
             dtype, reduction, root);
    return words;
  }
};

static size_t bytes_of_dtype(int dtype) {
  switch (dtype) {
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    case ncclFloat16: case ncclBfloat16: return 2;
    default: return 1;
  }
}

static std::string text_of(const std::vector<Operation>& operations) {
  std::string text;
  for (auto& operation : operations) text += (text.empty() ? "" : ", ") + operation.text();
  return text.substr(0, 600);
}

// ---------------------------------------------------------------- sums

template <class T>
static void reduce_into(void* total, const void* part, size_t count, int reduction) {
  auto* left = static_cast<T*>(total);
  auto* right = static_cast<const T*>(part);
  for (size_t i = 0; i < count; i++) {
    switch (reduction) {
      case ncclProd: left[i] = left[i] * right[i]; break;
      case ncclMax: left[i] = std::max(left[i], right[i]); break;
      case ncclMin: left[i] = std::min(left[i], right[i]); break;
      default: left[i] = left[i] + right[i];  // a sum; an average is divided afterwards
    }
  }
}

template <class T>
static void divide(void* total, size_t count, int by) {
  auto* values = static_cast<T*>(total);
  for (size_t i = 0; i < count; i++) values[i] = values[i] / static_cast<T>(by);
}

template <class T>
static void reduce_as(void* out, const std::vector<const char*>& parts, size_t count, int reduction) {
  std::string total(parts[0], count * sizeof(T));  // apart from `out`, which may be one of the parts
  for (size_t rank = 1; rank < parts.size(); rank++) reduce_into<T>(&total[0], parts[rank], count, reduction);
  if (reduction == ncclAvg) divide<T>(&total[0], count, parts.size());
  memcpy(out, total.data(), total.size());
}

static void reduce(void* out, const std::vector<const char*>& parts, const Operation& operation) {
  auto run = [&](auto zero) { reduce_as<decltype(zero)>(out, parts, operation.count, operation.reduction); };
  switch (operation.dtype) {
    case ncclInt8: return run(int8_t{});
    case ncclUint8: return run(uint8_t{});
    case ncclInt32: return run(int32_t{});
    case ncclUint32: return run(uint32_t{});
    case ncclInt64: return run(int64_t{});
    case ncclUint64: return run(uint64_t{});
    case ncclFloat16: return run(c10::Half{});
    case ncclFloat32: return run(float{});
    case ncclFloat64: return run(double{});
    case ncclBfloat16: return run(c10::BFloat16{});
    default: fail(BROKEN, "EMULATED NCCL: no sums of this dtype: " + operation.text());
  }
}

// ---------------------------------------------------------------- files

static void write_file(const std::string& path, const std::string& content) {
  std::string unfinished = path + ".part";  // renamed when complete: whoever sees the name sees all of it
  FILE* file = fopen(unfinished.c_str(), "wb");
  bool written = file && fwrite(content.data(), 1, content.size(), file) == content.size();
  if (file) written = fclose(file) == 0 && written;
  if (!written || rename(unfinished.c_str(), path.c_str())) fail(BROKEN, "EMULATED NCCL: cannot write " + path);
}

static bool read_file(const std::string& path, std::string& content) {
  int file = open(path.c_str(), O_RDONLY);
  if (file < 0) return false;
  struct stat status;
  fstat(file, &status);
  content.resize(status.st_size);
  size_t had = 0;
  while (had < content.size()) {
    ssize_t more = read(file, &content[had], content.size() - had);
    if (more <= 0) fail(BROKEN, "EMULATED NCCL: cannot read " + path);
    had += more;
  }
  close(file);
  return true;
}

// ---------------------------------------------------------------- communicators

struct ncclComm {
  int rank, size, device;
  std::string folder;
  int splits = 0;
  std::atomic<bool> aborted{false};
  uint64_t issued = 0, executed = 0;  // launches on this rank
  uint64_t collective_launches = 0;   // those with collectives, which all ranks take part in
  std::map<int, uint64_t> sent, received;  // messages so far, by peer
  std::mutex mutex;
  std::condition_variable finished;

  std::string file(const std::string& what, int of) const { return folder + "/" + what + "-" + std::to_string(of); }
};

// End this process and, by way of a file, those of all ranks that wait for it.
[[noreturn]] static void fail_everywhere(const ncclComm* comm, int code, const std::string& message) {
  write_file(comm->folder + "/failed", std::to_string(code) + " " + message);
  fail(code, message);
}

// Another rank's file, waited for. False if the communicator was aborted meanwhile.
static bool wait_for_file(
    ncclComm* comm, const std::string& path, int rank, const std::string& words, std::string& content) {
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(nccl_patience);
  while (!read_file(path, content)) {
    std::string failure;
    if (comm->aborted) return false;
    if (read_file(comm->folder + "/failed", failure)) fail(atoi(failure.c_str()), failure.substr(3));
    if (std::chrono::steady_clock::now() > give_up) {
      fail_everywhere(comm, HANG,
                      "EMULATED NCCL: HANG: rank " + std::to_string(comm->rank) + " of " + std::to_string(comm->size) +
                          " waits for rank " + std::to_string(rank) + " in " + words);
    }
    usleep(50);
  }
  return true;
}

// What every rank has for `what`, by rank; empty if the communicator was aborted meanwhile.
static std::vector<std::string> exchange(
    ncclComm* comm, const std::string& what, const std::string& mine, const std::string& words) {
  write_file(comm->file(what, comm->rank), mine);
  std::vector<std::string> found(comm->size);
  for (int rank = 0; rank < comm->size; rank++) {
    if (!wait_for_file(comm, comm->file(what, rank), rank, words, found[rank])) return {};
  }
  return found;
}

// ---------------------------------------------------------------- a launch

// One rank's collectives in a launch, as its file has them: their number, the operations, the bytes that it sends.
struct Part {
  std::vector<Operation> operations;
  const char* bytes;

  explicit Part(const std::string& file) {
    size_t count;
    memcpy(&count, file.data(), sizeof count);
    operations.resize(count);
    memcpy(operations.data(), file.data() + sizeof count, count * sizeof(Operation));
    bytes = file.data() + sizeof count + count * sizeof(Operation);
  }
};

// How many bytes this rank reads from the input of an operation.
static size_t bytes_sent(const ncclComm* comm, const Operation& operation) {
  size_t block = operation.count * bytes_of_dtype(operation.dtype);
  switch (operation.kind) {
    case BROADCAST: return comm->rank == operation.root ? block : 0;
    case SCATTER: return comm->rank == operation.root ? block * comm->size : 0;
    case REDUCE_SCATTER: case ALL_TO_ALL: return block * comm->size;
    default: return block;
  }
}

static void check_memory(const ncclComm* comm, const void* pointer, const Operation& operation) {
  Memory found = memory_at(pointer);
  bool usable = found.kind == PINNED || (found.kind == ON_DEVICE && found.device == comm->device);
  if (!usable) {
    fail_everywhere(comm, MISMATCH,
                    "EMULATED NCCL: not in the memory of device " + std::to_string(comm->device) + ": " +
                        operation.text());
  }
}

static std::string file_of(const ncclComm* comm, std::vector<Operation>& operations) {
  std::string bytes;
  for (auto& operation : operations) {
    size_t sent = bytes_sent(comm, operation);
    operation.offset = bytes.size();
    if (sent) {
      check_memory(comm, operation.input, operation);
      bytes.append(static_cast<const char*>(operation.input), sent);
    }
  }
  size_t count = operations.size();
  std::string file(reinterpret_cast<const char*>(&count), sizeof count);
  file.append(reinterpret_cast<const char*>(operations.data()), count * sizeof(Operation));
  return file + bytes;
}

static void check_agreement(const ncclComm* comm, const std::vector<Part>& parts, uint64_t number) {
  auto& mine = parts[comm->rank].operations;
  for (int rank = 0; rank < comm->size; rank++) {
    auto& theirs = parts[rank].operations;
    auto fits = [](const Operation& a, const Operation& b) { return a.fits(b); };
    if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), fits)) continue;
    fail_everywhere(comm, MISMATCH,
                    "EMULATED NCCL: MISMATCH in launch " + std::to_string(number) + ": rank " +
                        std::to_string(comm->rank) + " does " + text_of(mine) + "; rank " + std::to_string(rank) +
                        " does " + text_of(theirs));
  }
}

static void write_output(const ncclComm* comm, const std::vector<Part>& parts, const Operation& mine, size_t index) {
  size_t block = mine.count * bytes_of_dtype(mine.dtype);
  auto* out = static_cast<char*>(mine.output);
  std::vector<const char*> inputs;  // by rank
  for (auto& part : parts) inputs.push_back(part.bytes + part.operations[index].offset);

  bool is_root = comm->rank == mine.root;
  switch (mine.kind) {
    case BROADCAST:
      memcpy(out, inputs[mine.root], block);
      return;
    case SCATTER:
      memcpy(out, inputs[mine.root] + comm->rank * block, block);
      return;
    case REDUCE:
      if (is_root) reduce(out, inputs, mine);
      return;
    case ALL_REDUCE:
      reduce(out, inputs, mine);
      return;
    case REDUCE_SCATTER:
      for (auto& part : inputs) part += comm->rank * block;
      reduce(out, inputs, mine);
      return;
    case GATHER:
      if (!is_root) return;
      [[fallthrough]];
    case ALL_GATHER:
      for (int rank = 0; rank < comm->size; rank++) memcpy(out + rank * block, inputs[rank], block);
      return;
    case ALL_TO_ALL:
      for (int rank = 0; rank < comm->size; rank++) memcpy(out + rank * block, inputs[rank] + comm->rank * block, block);
      return;
    default:
      return;
  }
}

static void run_collectives(ncclComm* comm, std::vector<Operation> operations, uint64_t number) {
  std::string mine = file_of(comm, operations);
  auto files = exchange(comm, std::to_string(number), mine, text_of(operations));
  if (files.empty()) return;
  std::vector<Part> parts(files.begin(), files.end());
  check_agreement(comm, parts, number);
  pause_up_to(nccl_delay);
  for (size_t i = 0; i < operations.size(); i++) write_output(comm, parts, operations[i], i);
  // who has this launch's files from all ranks knows that all are through with the one before the last
  if (number > 1) unlink(comm->file(std::to_string(number - 2), comm->rank).c_str());
}

// ---------------------------------------------------------------- messages between two ranks

static std::string message_file(const ncclComm* comm, int from, int to, uint64_t number) {
  return comm->file("message-" + std::to_string(from) + "-" + std::to_string(to), number);
}

static void send(const ncclComm* comm, const Operation& mine) {
  size_t bytes = mine.count * bytes_of_dtype(mine.dtype);
  if (bytes) check_memory(comm, mine.input, mine);
  std::string message(reinterpret_cast<const char*>(&mine), sizeof mine);
  message.append(static_cast<const char*>(mine.input), bytes);
  write_file(message_file(comm, comm->rank, mine.root, mine.number), message);
}

static void receive(ncclComm* comm, const Operation& mine) {
  std::string path = message_file(comm, mine.root, comm->rank, mine.number), message;
  if (!wait_for_file(comm, path, mine.root, mine.text(), message)) return;
  unlink(path.c_str());
  Operation sent;
  memcpy(&sent, message.data(), sizeof sent);
  if (sent.count != mine.count || sent.dtype != mine.dtype) {
    fail_everywhere(comm, MISMATCH,
                    "EMULATED NCCL: MISMATCH: rank " + std::to_string(comm->rank) + " does " + mine.text() +
                        "; rank " + std::to_string(mine.root) + " does " + sent.text());
  }
  memcpy(mine.output, message.data() + sizeof sent, message.size() - sizeof sent);
}

// ---------------------------------------------------------------- launches

struct Launch {
  std::vector<Operation> collectives, sends, receives;
  uint64_t order;       // among all launches on this rank
  uint64_t collective;  // among those with collectives
};

// In the order in which the host makes them. Another in each replay of a graph.
static Launch numbered(ncclComm* comm, const std::vector<Operation>& operations) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  Launch made;
  for (Operation operation : operations) {
    if (operation.kind == SEND) {
      operation.number = comm->sent[operation.root]++;
      made.sends.push_back(operation);
    } else if (operation.kind == RECEIVE) {
      operation.number = comm->received[operation.root]++;
      made.receives.push_back(operation);
    } else {
      made.collectives.push_back(operation);
    }
  }
  made.order = comm->issued++;
  made.collective = made.collectives.empty() ? 0 : comm->collective_launches++;
  return made;
}

// On a stream's thread. Launches of a communicator happen one after the other, whatever streams they are on.
static void execute(ncclComm* comm, const Launch& launch) {
  {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->finished.wait(lock, [&] { return comm->executed == launch.order; });
  }
  pause_up_to(nccl_delay);
  for (auto& operation : launch.sends) send(comm, operation);
  if (!launch.collectives.empty()) run_collectives(comm, launch.collectives, launch.collective);
  for (auto& operation : launch.receives) receive(comm, operation);
  std::lock_guard<std::mutex> lock(comm->mutex);
  comm->executed = launch.order + 1;
  comm->finished.notify_all();
}

static void launch(ncclComm* comm, cudaStream_t handle, const std::vector<Operation>& operations) {
  counters[NCCL_LAUNCHES]++;
  counters[NCCL_OPERATIONS] += operations.size();
  int device = current_device;
  current_device = comm->device;  // as NCCL does: the default stream is that of the communicator's device
  Stream* stream = stream_of(handle);
  current_device = device;
  stream->make([=] {
    auto made = std::make_shared<Launch>(numbered(comm, operations));
    return [=] { execute(comm, *made); };
  });
}

// ---------------------------------------------------------------- groups of operations

struct Waiting {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Operation> operations;
};
static thread_local int group_depth = 0;
static thread_local std::vector<Waiting> waiting;

static ncclResult_t enqueue(ncclComm* comm, cudaStream_t stream, Operation operation) {
  if (!comm) return ncclInvalidArgument;
  if (operation.count == 0 && operation.is_collective()) return ncclSuccess;  // NCCL leaves it out
  if (group_depth == 0) {
    launch(comm, stream, {operation});
    return ncclSuccess;
  }
  for (auto& one : waiting) {
    if (one.comm == comm && one.stream == stream) {
      one.operations.push_back(operation);
      return ncclSuccess;
    }
  }
  waiting.push_back({comm, stream, {operation}});
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  auto complete = std::move(waiting);
  waiting.clear();
  for (auto& one : complete) launch(one.comm, one.stream, one.operations);
  return ncclSuccess;
}

// ---------------------------------------------------------------- joining

EXPORTED ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const char* home = getenv("EMULATED_FOLDER");
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "%s/nccl-XXXXXX", home ? home : "/dev/shm");
  if (!mkdtemp(id->internal)) fail(BROKEN, std::string("EMULATED NCCL: cannot make ") + id->internal);
  return ncclSuccess;
}

static thread_local std::string last_error;

static ncclResult_t join(ncclComm_t* out, int size, const std::string& folder, int rank) {
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->size = size;
  comm->device = current_device;
  comm->folder = folder;
  mkdir(folder.c_str(), 0700);
  auto devices = exchange(comm, "device", std::to_string(current_device), "joining");
  for (int other = 0; other < size; other++) {
    if (other != rank && devices[other] == devices[rank]) {
      last_error = "Duplicate GPU detected: ranks " + std::to_string(rank) + " and " + std::to_string(other) +
                   " are both on device " + devices[rank];
      return ncclInvalidUsage;
    }
  }
  *out = comm;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return join(out, size, id.internal, rank);
}

EXPORTED ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
  return join(out, size, id.internal, rank);
}

EXPORTED ncclResult_t ncclCommInitRankScalable(
    ncclComm_t* out, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t*) {
  return join(out, size, ids[0].internal, rank);
}

EXPORTED ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  std::string what = "split" + std::to_string(parent->splits++);
  auto claims = exchange(parent, what, std::to_string(color) + " " + std::to_string(key), "splitting");
  *out = nullptr;
  if (color < 0) return ncclSuccess;
  std::vector<std::pair<int, int>> members;  // by key, then by rank
  for (int rank = 0; rank < parent->size; rank++) {
    int its_color, its_key;
    sscanf(claims[rank].c_str(), "%d %d", &its_color, &its_key);
    if (its_color == color) members.push_back({its_key, rank});
  }
  std::sort(members.begin(), members.end());
  auto me = std::find(members.begin(), members.end(), std::make_pair(key, parent->rank));
  return join(out, members.size(), parent->folder + "-" + what + "-" + std::to_string(color), me - members.begin());
}

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }  // its thread may still be in a launch

EXPORTED ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) comm->aborted = true;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommCount(const ncclComm_t comm, int* size) {
  *size = comm->size;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = reinterpret_cast<void*>(1);
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
EXPORTED ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

EXPORTED ncclResult_t ncclRedOpCreatePreMulSum(
    ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  return ncclInvalidUsage;  // not emulated
}

EXPORTED const char* ncclGetErrorString(ncclResult_t result) {
  static thread_local char text[40];
  snprintf(text, sizeof text, "emulated NCCL result %d", result);
  return text;
}

EXPORTED const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

EXPORTED ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

EXPORTED ncclResult_t ncclMemFree(void* pointer) {
  cudaFree(pointer);
  return ncclSuccess;
}

// ---------------------------------------------------------------- the operations by NCCL's names

EXPORTED ncclResult_t ncclAllGather(
    const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {ALL_GATHER, in, out, count, dtype, 0, 0});
}

EXPORTED ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                    ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {ALL_REDUCE, in, out, count, dtype, reduction, 0});
}

EXPORTED ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction,
                                 int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {REDUCE, in, out, count, dtype, reduction, root});
}

EXPORTED ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t dtype,
                                        ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {REDUCE_SCATTER, in, out, count, dtype, reduction, 0});
}

EXPORTED ncclResult_t ncclBroadcast(
    const void* in, void* out, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {BROADCAST, in, out, count, dtype, 0, root});
}

EXPORTED ncclResult_t ncclBcast(
    void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {BROADCAST, buffer, buffer, count, dtype, 0, root});
}

EXPORTED ncclResult_t ncclAlltoAll(
    const void* in, void* out, size_t count, ncclDataType_t dtype, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {ALL_TO_ALL, in, out, count, dtype, 0, 0});
}

EXPORTED ncclResult_t ncclGather(
    const void* in, void* out, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {GATHER, in, out, count, dtype, 0, root});
}

EXPORTED ncclResult_t ncclScatter(
    const void* in, void* out, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {SCATTER, in, out, count, dtype, 0, root});
}

EXPORTED ncclResult_t ncclSend(
    const void* in, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {SEND, in, nullptr, count, dtype, 0, peer});
}

EXPORTED ncclResult_t ncclRecv(
    void* out, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {RECEIVE, nullptr, out, count, dtype, 0, peer});
}
