"""The character classes that the named patterns speak of, frozen at one version of Unicode.

Packages differ in the version of Unicode that they know, and so in where they cut. Ours are those of `regex` 2026.11,
which knows Unicode 17.0; a test holds the table against it.
"""

import zlib
from base64 import b85decode
from functools import cache

import numpy as np
from numpy.typing import NDArray

OTHER = 0
MARK = 1  # \p{M}
UPPER = 2  # \p{Lu} and \p{Lt}
LOWER = 3  # \p{Ll}
CASELESS = 4  # \p{Lm} and \p{Lo}
NUMBER = 5  # \p{N}
SPACE = 6  # \s


@cache
def character_classes() -> NDArray[np.uint8]:
    """The class of every code point, U+0000 to U+10FFFF; surrogates are OTHER."""
    runs = np.frombuffer(zlib.decompress(b85decode(_RUNS)), dtype="<u4")
    classes = np.repeat((runs & 7).astype(np.uint8), runs >> 3)
    classes.setflags(write=False)
    return classes


# Runs of code points of one class, in order: 8 x length + class as 32-bit numbers, compressed.
_RUNS = (
    "c-rk-e`wp+5&u3(aldlZRFb_-aukppb;yafDT}k&iwjQTg1tE4GKsluI_%8@hq(|l51h>drFFp>`D11tj4p)~T3A^MS?fVEQs|if2yHq_o52Py^p"
    "9?&%me?C!v4r$cY2@e_w*v=7tNZb`Qvf=z90AQ-QBx)@9t^P^Sm!p`8kzMRA#AEsPs^Ihf0acyHrNd{x;wsl^FVcj*3rZBb5}D`_aaATLAw6_zfz"
    "5!tZ@lS~2c!gl(Vl_)ili8`N)ZP%qydSZ`;8dOa?A1M{^t!SD8OgPsa)`3CbO?*Ki}cwBlq?&AI9!rhKsG+#S!VEp!w=e5J0Em6r*nV@o*N)fh9>"
    "=wfXDo4Xt<B~q|9Y@_}RbK-1AtPUX%Nl-$?{D&06UbO}{&w<myZZJU?2BiKo~O;7BY&o`_b%4&<Y(-BxLY9W<yVb`?b!GGjkO8wurY_w9!39z1Jf"
    "9{ivD~KU83?Rl>(K6H2x*{Wm({5T$ylSt9oIFcA#Bw=kU#AGs;#~0U6I_Dt|-Ug^-;$2D`}PVl@AdT2BmpqkzkphwFy`(|}#@Eia&s#~;MHRzPDP"
    "Y%h;3(_DW<eUyGLn*i6MT5B0=jDtq*KaV;1_kb73KxmY?gl8%6TGpcZD7a<re)JLk`{1XhLFU?}`0Oh_32og9Pb1pe8^E~IpDv8oG^WtrgEjfeKd"
    "+!~27N{qEyHRp{xxVRI(*urbXTCPc~<G5@J8+nJDhRXlT)+#8_B7lc+*Tq!k1mR(?pe=y1_@`MIPVnYMjuNQZNHJfw{ZzomP8LcvHfhytkgDGKu~"
    "JjvUS@op#slJGgt)e$O~M<H~{c_#w3(Er&+)m#@M9W^@!BI$ZvX{TjnKR|kiU9n)-{n3^Ms^=LUir{t-}E<r9Uj_!*+>r?wEt8`WN-5$uVqI8etH"
    "*aj8cF<b@F4-fs`?R@QkBWdRPJP)6@C_;YicY^?g+C5`^^9#l1NxZW7oBxzD0W2TpEtJdd38n=aTeA1Z|q*?vFD9Fo1O<v70lNSIpvl8Oe_9m&^|"
    "?FT%AJ|wO8a!Z3RDDQUACJc)&jLaBHwv<BomT^~0wAJ7#Wd+#J3yIQ=uB!0rr!$0_VrK3iWw`%bY9ZT9;(;wKm7Y!BJ?Es#ME^fU*&Cosn->J!*E"
    "Q_h}|`WJ{!V=T^?I<KQ@4~h;isJ#(YZR`W|K<<pU-30rdY3>eL+j#|J$1%@1Y-$BQh3G8PJ^{VDh&i5MT*lfNvDv5S`w`&$P}v(z^Q1nHL-wrU@p"
    "Clx7<iac>l*@J(xB;(@`sqFX|(5|$Ngv%yIw&X)3RUreawf)P~QQW3ol=So<y-1WG|-`55GrauTc2`>e}dck!2UU=TqN<pFG@uj}Lc@9QNW|sGW0"
    "w`%u5{8tpoU)CkJhA2z`$a686u{9v0CyWi}zaotwnllW{FxVFKTH5&6B++jbDKDFF}v9PLg1ae<0C?BGLbFyme9dH5b%PK!W$Ba9iI93XDl&-<AP"
    "PJ}{9p+U$Phzd&du+x0GS71=Hufbdr)i;or@F&rzkko)gy17STWH`@PAskCI<cG11~HzUI72$_?V&p=zf)?^mR7$9q3bnY&;&YHP`b8ag4pvc{Dp"
    "HE+vnVeZx*sIIEy<$b(7tHazAFe&Qm#{?mBYM+oIw<%c1(aw)mVELxE2$aVq}444?Kv_=6E+_wqdMC%nhksXPokKUMX7PpW+r10#PXNVukmfE2+Q"
    "_*+wc;A>0V<>dddF2&&QGcO)d_mKZJ9dcJ^|6XE7?4u7u?ze(>^Jmyb#G2%|lQ%Iw-lYC^^LU#BZxv7HCy?iG$BQ3u7`8{+GJt&&9|z1Un<{tBDE"
    "tJ81M<Cj3_8DLY^-@i-8~mod@$z3vAE9%i1)-X&mr6^*DxlBJL)v(*71@e@RU(kRB^CroCC6!0VkeT!h9(eXIWDB^|ad8a-WZ>INs|jFK`h2iK}?"
    "p2-Y2UV576?aTO!kuk<$w_%zv-j0xgm?mF^Mm>SQ{K}N?pX5brdW~1#_4pTp4^T1>9V+(3M604kY;%l)carFt#pKuIoqs>u7aL#egq2C1Y+@tVW8"
    "S;4~c>5xr_p2uFWkwN4Nj2f0@HmBee8fh4#C$ZJbLc<AkovEN?fRdD&b|d7ncv|ogc0kB1iHt36u;s<tclO$2O-B7;0p`@)?z%y>Ow)qawIk=u|o"
    "EHN2qQum3>rZLiO_OME|Wa&e-^h?6t>$=f~=8kmSc}`ULnBz}@Peky3chMeRD4p|1nbYl;7sp_em|U$>K=nK1Qn{g~Rvari0n`ys@=`r$XRU!&z!"
    "0AH42TXf8;295RivXB>#c?P(DWa?w`5=+mioR0WjYbx&{_Ur)SzH91D)*5^{_OC>49{_h2v{s?>BcNN>d;;@7jM(EDtiMV;9Hw%{*mnXPllwJ%*j"
    "><*oQkDM?2h^V3V7V5_U5bnuB^rL{^Q6iq4F$MWq-T8K;Ay~<(lLwG4C>B)~w@yRWVi8*Hc)>N#$p!5q~^_z59`h+lkE_l(@CAxO>oN68X&@wca%"
    "NFs)+r5{peJIx{AS&Bhch^B9}QxSZ07it|n-i}<s|h<(sAuJTQCR;`=Hv2I_*y31G#pI7710a;h>7V>t!SD(*u^LB1-tf0=SIL3(FN0ptAIs3R<<"
    "pzeF+-p?jk0ghx&%sH|cL{p1sO~itwZ}5JyUZhAtaCaa>-z@FJ6Y=x_D){bWbF83%HE91Smaa=Ir&@3<Ghb|0*v<v==we&^Zxt>YtOi?KxaXSeus"
    "_CiH#|_3GW6Rd9A3spzuHE@JezGHM&9p&OWu~UPnix*oQIPaRyA#C#Ul3{ix&p#rM6Vibs4#v)x(1_isYhmv}v7^EtDMSCZQ+Dt}{-x?}&#Iop1R"
    "J~e+UbhRF{ZtYO{LH&NCSFN$%$%APe5fj+GgrkRA&XOyss6A18k8z*1$&wq=zMS|x?WTUeOaf07{F3#*%sNMXFOou+NKc*#TYhj}Cf{P^`x>9CG*"
    "K*U$IR!f9hSVt5uCTHbI5tp!F~QOmZytC|JTSCCG7gHC|k(unhVu`i!5ZH&tolv*gIn?hb%elQ;;L`rFy@$&658qwFLVA8t}Y<Io@P^#^&F$ipOV"
    "hj!Ayf3)Sy&c|VbWT(<!4>OTmNvHbrxjX4pvykE*#fByv4Us?}rt*c+d(cq25CFiY<exEo&6<O+d5b~OWtcTHF#y8Wq@D%t!h^7%cIm>H$z_!0{g"
    "0~7gpu2n2{#^$jPDX+pWE%Yv%C36I*Ynx(BIHzqMB`gbSH$|p@4`nGKkgS^P_N%c##NkGz9n9}7qM7h#bS3We^KxyRh&1DaoWdp`}isrE-_@?_nn"
    ")7|HQaA0N(`Mc^m5V8`NJK`{OL^$D#@B>S4gs%J<^^TcyQ+3wrij6TGu+^v+P?46okCm`^)sWg1Q!yKm&3!!f0st_`i(a%1mvyv}Mkum!!?Z*j*D"
    "^INUWi6U1#0l$^|oZe*p<d45wY~O^=Q?vv&E#vrEed^9F=K{BR_XT@D-{78CJF{9Wtp`B+AkmdHHb>m6d_Jb(3@z|IQ~zHJ_Ibxb_I@bw)p$!V->"
    "NgO>qnIx`t&(oa^4mA4PfRv_^$`uajwnGH=$4HKJL6hDysTy(!RS&eH*rs783dThMEn#vVeQyGTv%@XwSVFe!D@!xJ;GtuaND1*5WTmjaOQYc#-e"
    "Y;4hANM@hET^)Gn;1t8HReE"
)
