import os,mmap,time,sys,concurrent.futures as cf
sys.path.insert(0,'.')
from pyengine._native import hashing
from pyengine.shm.arena import Arena
d='/tmp/pe/wt-writer/.io'; os.makedirs(d,exist_ok=True)
N=16; S=32<<20
a=Arena.create(N*S,'b'); a.reserve(0,N*S); a.mapping.populate(0,N*S,True)
import random
b=random.randbytes(1<<20)
for i in range(N*S>>20): a.view(i<<20,1<<20)[:]=b
views=[a.view(i*S,S) for i in range(N)]
def wr(i,chunk=S,pre=False,sync=True):
    fd=os.open(f'{d}/f{i}',os.O_WRONLY|os.O_CREAT|os.O_EXCL|os.O_DIRECT)
    if pre: os.posix_fallocate(fd,0,S)
    for o in range(0,S,chunk): os.pwrite(fd,views[i][o:o+chunk],o)
    if sync: os.fsync(fd)
    os.close(fd)
def clean():
    for i in os.listdir(d): os.unlink(f'{d}/{i}')
def t(name,f):
    rs=[]
    for _ in range(3):
        clean(); os.sync(); t0=time.perf_counter(); f(); rs.append(N*S/(time.perf_counter()-t0)/1e9)
    print(f'{name:40s}', ' '.join(f'{r:.2f}' for r in rs)); 
def one():
    fd=os.open(f'{d}/big',os.O_WRONLY|os.O_CREAT|os.O_DIRECT)
    for i in range(N): os.pwrite(fd,views[i],i*S)
    os.fsync(fd); os.close(fd)
def oneff():
    fd=os.open(f'{d}/big',os.O_WRONLY|os.O_CREAT|os.O_DIRECT)
    os.posix_fallocate(fd,0,N*S)
    for i in range(N): os.pwrite(fd,views[i],i*S)
    os.fsync(fd); os.close(fd)
def seq(**k):
    for i in range(N): wr(i,**k)
def par(n,hashit=False,**k):
    def job(i):
        if hashit: hashing.xxh3_64(views[i])
        wr(i,**k)
    with cf.ThreadPoolExecutor(n) as ex: list(ex.map(job,range(N)))
t('one file, 32M writes',one)
t('one file, fallocate',oneff)
t('files seq',seq)
t('files seq 8M',lambda:seq(chunk=8<<20))
t('files seq prealloc',lambda:seq(pre=True))
t('par2 hash',lambda:par(2,True))
t('par2 hash 8M',lambda:par(2,True,chunk=8<<20))
t('par3 hash',lambda:par(3,True))
t('par2 hash pre',lambda:par(2,True,pre=True))
t('par1 hash',lambda:par(1,True))
clean(); os.rmdir(d)
