// SPDX-License-Identifier: MIT
// libnccl without a GPU: ranks exchange bytes through files in memory, and what NCCL leaves undefined ends the process.
//
// A launch is one operation, or a group of them. Every rank of a communicator writes what its n-th launch is about to
// do, and the bytes that it sends, into a file; it waits for the files of all others; it compares; it writes its
// outputs. Launches happen on the threads of streams, so that their inputs are read and their outputs written when a
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
  size_t offset = 0;  // of its input among the bytes that this rank sends

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
  uint64_t issued = 0, executed = 0;  // launches
  std::mutex mutex;
  std::condition_variable finished;

  std::string file(const std::string& what, int of) const { return folder + "/" + what + "-" + std::to_string(of); }
};

// End this process and, by way of a file, those of all ranks that wait for it.
[[noreturn]] static void fail_everywhere(const ncclComm* comm, int code, const std::string& message) {
  write_file(comm->folder + "/failed", std::to_string(code) + " " + message);
  fail(code, message);
}

// What every rank has for `what`, by rank; empty if the communicator was aborted meanwhile.
static std::vector<std::string> exchange(
    ncclComm* comm, const std::string& what, const std::string& mine, const std::string& words) {
  auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(nccl_patience);
  write_file(comm->file(what, comm->rank), mine);
  std::vector<std::string> found(comm->size);
  for (int rank = 0; rank < comm->size; rank++) {
    while (!read_file(comm->file(what, rank), found[rank])) {
      std::string failure;
      if (comm->aborted) return {};
      if (read_file(comm->folder + "/failed", failure)) fail(atoi(failure.c_str()), failure.substr(3));
      if (std::chrono::steady_clock::now() > give_up) {
        fail_everywhere(comm, HANG,
                        "EMULATED NCCL: HANG: rank " + std::to_string(comm->rank) + " of " +
                            std::to_string(comm->size) + " waits for rank " + std::to_string(rank) + " in " + words);
      }
      usleep(50);
    }
  }
  return found;
}

// ---------------------------------------------------------------- a launch

// One rank's part of a launch, as its file has it: the number of operations, the operations, the bytes it sends.
struct Part {
  std::vector<Operation> operations, collectives;
  const char* bytes;

  explicit Part(const std::string& file) {
    size_t count;
    memcpy(&count, file.data(), sizeof count);
    operations.resize(count);
    memcpy(operations.data(), file.data() + sizeof count, count * sizeof(Operation));
    bytes = file.data() + sizeof count + count * sizeof(Operation);
    for (auto& operation : operations) {
      if (operation.is_collective()) collectives.push_back(operation);
    }
  }

  // The n-th send or receive between this rank and a peer; null if there is none.
  const Operation* between(Kind kind, int peer, int n) const {
    for (auto& operation : operations) {
      if (operation.kind == kind && operation.root == peer && n-- == 0) return &operation;
    }
    return nullptr;
  }
};

// How many bytes this rank reads from the input of an operation.
static size_t bytes_sent(const ncclComm* comm, const Operation& operation) {
  size_t block = operation.count * bytes_of_dtype(operation.dtype);
  switch (operation.kind) {
    case RECEIVE: return 0;
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
  auto& mine = parts[comm->rank].collectives;
  for (int rank = 0; rank < comm->size; rank++) {
    auto& theirs = parts[rank].collectives;
    auto fits = [](const Operation& a, const Operation& b) { return a.fits(b); };
    if (std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(), fits)) continue;
    fail_everywhere(comm, MISMATCH,
                    "EMULATED NCCL: MISMATCH in launch " + std::to_string(number) + ": rank " +
                        std::to_string(comm->rank) + " does " + text_of(parts[comm->rank].operations) + "; rank " +
                        std::to_string(rank) + " does " + text_of(parts[rank].operations));
  }
}

static void write_output(const ncclComm* comm, const std::vector<Part>& parts, const Operation& mine, size_t index) {
  size_t block = mine.count * bytes_of_dtype(mine.dtype);
  auto* out = static_cast<char*>(mine.output);
  std::vector<const char*> inputs;  // by rank
  for (auto& part : parts) inputs.push_back(part.bytes + part.collectives[index].offset);

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

static void receive(const ncclComm* comm, const std::vector<Part>& parts, const Operation& mine, int n) {
  const Part& from = parts[mine.root];
  const Operation* sent = from.between(SEND, comm->rank, n);
  if (!sent || sent->count != mine.count || sent->dtype != mine.dtype) {
    fail_everywhere(comm, MISMATCH,
                    "EMULATED NCCL: MISMATCH: rank " + std::to_string(comm->rank) + " does " + mine.text() +
                        "; the other rank does " + (sent ? sent->text() : std::string("no such send")));
  }
  memcpy(mine.output, from.bytes + sent->offset, mine.count * bytes_of_dtype(mine.dtype));
}

static void write_outputs(const ncclComm* comm, const std::vector<Part>& parts) {
  size_t collectives = 0;
  std::map<int, int> received;  // so far, by peer
  for (auto& mine : parts[comm->rank].operations) {
    if (mine.is_collective()) {
      write_output(comm, parts, mine, collectives++);
    } else if (mine.kind == RECEIVE) {
      receive(comm, parts, mine, received[mine.root]++);
    }
  }
}

// On a stream's thread. Launches of a communicator happen one after the other, whatever streams they are on.
static void execute(ncclComm* comm, std::vector<Operation> operations, uint64_t number) {
  {
    std::unique_lock<std::mutex> lock(comm->mutex);
    comm->finished.wait(lock, [&] { return comm->executed == number; });
  }
  pause_up_to(nccl_delay);
  auto files = exchange(comm, std::to_string(number), file_of(comm, operations), text_of(operations));
  if (!files.empty()) {
    std::vector<Part> parts(files.begin(), files.end());
    check_agreement(comm, parts, number);
    pause_up_to(nccl_delay);
    write_outputs(comm, parts);
  }
  // who has this launch's files from all ranks knows that all are through with the one before the last
  if (number > 1) unlink(comm->file(std::to_string(number - 2), comm->rank).c_str());
  std::lock_guard<std::mutex> lock(comm->mutex);
  comm->executed = number + 1;
  comm->finished.notify_all();
}

static void launch(ncclComm* comm, cudaStream_t handle, const std::vector<Operation>& operations) {
  counters[NCCL_LAUNCHES]++;
  counters[NCCL_OPERATIONS] += operations.size();
  int device = current_device;
  current_device = comm->device;  // as NCCL does: the default stream is that of the communicator's device
  Stream* stream = stream_of(handle);
  current_device = device;
  stream->make([=] {  // each replay of a graph is another launch
    std::lock_guard<std::mutex> lock(comm->mutex);
    uint64_t number = comm->issued++;
    return [=] { execute(comm, operations, number); };
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
