// SPDX-License-Identifier: MIT
// libcudart: devices and memory. All devices share the host's memory; who owns an address is written down.
#include "emulator.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

thread_local int current_device = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static const size_t DEVICE_BYTES = 16ull << 30;
static const int CUDA_VERSION_SHOWN = CUDART_VERSION;

int device_count() {
  static int count = setting("EMULATED_DEVICES", 2);
  return count;
}

cudaError_t answer(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// The operators replace kernels in libtorch_cuda, which is loaded by the time torch asks for devices: not before.
static void load_operators() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* path = getenv("EMULATED_OPERATORS");
    if (path && !dlopen(path, RTLD_NOW | RTLD_GLOBAL)) fail(88, std::string("EMULATED: ") + dlerror());
  });
}

EXPORTED cudaError_t cudaGetDeviceCount(int* count) {
  load_operators();
  *count = device_count();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return answer(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION_SHOWN;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDA_VERSION_SHOWN;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "Emulated GPU %d", device);
  properties->totalGlobalMem = DEVICE_BYTES;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->regsPerMultiprocessor = 65536;
  properties->unifiedAddressing = 1;
  properties->pciBusID = device + 1;
  properties->uuid.bytes[0] = device;
  for (int i = 0; i < 3; i++) {
    properties->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    properties->maxGridSize[i] = 65535;
  }
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceSynchronize() {
  counters[DEVICE_SYNCS]++;
  for (Stream* stream : all_streams()) {
    if (stream->device == current_device) stream->drain();
  }
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

EXPORTED cudaError_t cudaPeekAtLastError() { return last_error; }

EXPORTED const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[64];
  snprintf(text, sizeof text, "emulated CUDA error %d", error);
  return text;
}

EXPORTED const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
EXPORTED cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORTED cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---------------------------------------------------------------- memory

static std::mutex memory_mutex;
static auto& memory = *new std::map<uintptr_t, Memory>;  // by first address; never destroyed, since threads outlive main

Memory memory_at(const void* pointer) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(memory_mutex);
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return {};
  auto& [start, found] = *std::prev(next);
  return address < start + found.bytes ? found : Memory{};
}

static void note(void* pointer, MemoryKind kind, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  memory[reinterpret_cast<uintptr_t>(pointer)] = {kind, bytes, current_device};
}

static void forget(void* pointer) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  memory.erase(reinterpret_cast<uintptr_t>(pointer));
}

static cudaError_t allocate(void** pointer, MemoryKind kind, size_t bytes) {
  if (bytes == 0) bytes = 1;
  if (posix_memalign(pointer, 4096, bytes)) return answer(cudaErrorMemoryAllocation);
  memset(*pointer, 0xA7, bytes);  // so that nothing passes by luck, as on fresh zeros it could
  note(*pointer, kind, bytes);
  return cudaSuccess;
}

static bool any_capture() {
  for (Stream* stream : all_streams()) {
    if (stream->capture) return true;
  }
  return false;
}

static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

EXPORTED cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  counters[ALLOCATIONS]++;
  return allocate(pointer, ON_DEVICE, bytes);
}

EXPORTED cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  cudaDeviceSynchronize();
  forget(pointer);
  free(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (capture_mode != cudaStreamCaptureModeRelaxed && any_capture()) return answer(cudaErrorStreamCaptureUnsupported);
  return allocate(pointer, PINNED, bytes);
}

EXPORTED cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

EXPORTED cudaError_t cudaFreeHost(void* pointer) {
  forget(pointer);
  free(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  note(pointer, PINNED, bytes);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaHostUnregister(void* pointer) {
  forget(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = DEVICE_BYTES / 2;
  *total = DEVICE_BYTES;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Memory found = memory_at(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->device = found.kind == NOT_OURS ? cudaInvalidDeviceId : found.device;
  attributes->type = found.kind == ON_DEVICE ? cudaMemoryTypeDevice
                     : found.kind == PINNED  ? cudaMemoryTypeHost
                                             : cudaMemoryTypeUnregistered;
  if (found.kind != NOT_OURS) attributes->devicePointer = const_cast<void*>(pointer);
  if (found.kind == PINNED) attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

// ---------------------------------------------------------------- the driver's functions, by name

static int driver_refuses() { return cudaErrorNotSupported; }
static int driver_accepts() { return cudaSuccess; }
static int driver_context(void** context) {
  *context = reinterpret_cast<void*>(0x10);  // any address but null: "there is a context"
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  std::string wanted = name;
  auto chosen = reinterpret_cast<void*>(driver_refuses);
  if (wanted.rfind("cuCtx", 0) == 0) chosen = reinterpret_cast<void*>(driver_accepts);
  if (wanted == "cuCtxGetCurrent") chosen = reinterpret_cast<void*>(driver_context);
  *function = chosen;
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
